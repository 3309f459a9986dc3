-- A ticket comes in. Asking twice changes nothing. ARGV: process, ticket, model, account, the most active at an endpoint,
-- the most that may wait, seconds that it may wait, the endpoints where the model is Warm.
-- Returns where it is ('' while it waits), the sequence of this moment, and why it is refused: '', 'unknown' (the process,
-- as when all was lost: it has to say first which tickets it has), 'full', or after how many seconds its turn would come.
local process, ticket, model, account = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local capacity, most_waiting, patience = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local endpoints = rest(8)
if redis.call('HEXISTS', BEATS, process) == 0 then return {'', 0, 'unknown'} end
local known = redis.call('HGET', tickets_of(process), ticket)
if not is_of_job(ticket) then redis.call('HSET', LAST_ASKED, model, now()) end
if not known then
    enqueue(model, account, ticket)
    advance(model, capacity, endpoints)
    known = redis.call('HGET', tickets_of(process), ticket)
end
local _, _, endpoint = parse(known)
local sequence = tonumber(redis.call('GET', SEQUENCE))
if endpoint ~= '' then return {endpoint, sequence, ''} end

local all, mine = redis.call('ZCARD', queue(model)), redis.call('ZCARD', queue_of(model, account))
if all > most_waiting or (mine > 1 and mine * 2 > most_waiting - (all - mine)) then
    forget(ticket, known)
    return {'', sequence, 'full'}
end
local open = 0
for _, _ in pairs(counts(model, endpoints)) do open = open + 1 end
local each = tonumber(redis.call('HGET', SECONDS, model) or 0)
if open > 0 and each > 0 then
    local ahead = 0
    for _, other in ipairs(redis.call('ZRANGE', people(model), 0, -1)) do
        ahead = ahead + math.min(redis.call('ZCARD', queue_of(model, other)), mine)
    end
    local wait = ahead * each / (capacity * open)
    if wait > patience then
        forget(ticket, known)
        return {'', sequence, tostring(wait)}
    end
end
return {'', sequence, ''}
