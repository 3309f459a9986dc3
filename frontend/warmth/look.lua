-- A process asks where its tickets for a model are. ARGV: process, model, the most active, number of tickets, those, then
-- the endpoints where the model is Warm. Returns an endpoint for each ticket, '' while it waits.
local number = tonumber(ARGV[4])
advance(ARGV[2], tonumber(ARGV[3]), rest(5 + number))
local found = {}
for i = 5, 4 + number do
    local known = redis.call('HGET', tickets_of(ARGV[1]), ARGV[i])
    local _, _, endpoint = parse(known or '||')
    found[#found + 1] = endpoint
end
return found
