-- A process says that it lives and which tickets it has. If it is not known here, everything was lost, and what it says is
-- put back. ARGV: process, then for each ticket: ticket, model, account, endpoint. Returns whether all had been lost.
local lost = redis.call('HINCRBY', BEATS, ARGV[1], 1) == 1
if lost then
    for i = 2, #ARGV, 4 do
        local ticket, model, account, endpoint = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
        if endpoint == '' then
            enqueue(model, account, ticket)
        else
            put(model, account, ticket, endpoint)
        end
    end
end
return lost and 1 or 0
