-- A ticket comes in: 1 if it is active now, 0 if it waits, -1 if there is no room. Asking twice changes nothing.
-- -2 if the process is not known here, as when all was lost: it has to say first which tickets it has.
-- KEYS: active set, waiting sorted set, sequence, the process's hash of tickets, hash of beats
-- ARGV: ticket, key id, the most active, the most waiting, process
if redis.call('HEXISTS', KEYS[5], ARGV[5]) == 0 then return -2 end
local most_active, most_waiting = tonumber(ARGV[3]), tonumber(ARGV[4])
while redis.call('SCARD', KEYS[1]) < most_active do
    local first = redis.call('ZPOPMIN', KEYS[2])
    if not first[1] then break end
    redis.call('SADD', KEYS[1], first[1])
end
if redis.call('SISMEMBER', KEYS[1], ARGV[1]) == 1 then return 1 end
if redis.call('ZSCORE', KEYS[2], ARGV[1]) then return 0 end
if redis.call('SCARD', KEYS[1]) < most_active then
    redis.call('SADD', KEYS[1], ARGV[1])
    redis.call('HSET', KEYS[4], ARGV[1], ARGV[2])
    return 1
end
if redis.call('ZCARD', KEYS[2]) < most_waiting then
    redis.call('ZADD', KEYS[2], redis.call('INCR', KEYS[3]), ARGV[1])
    redis.call('HSET', KEYS[4], ARGV[1], ARGV[2])
    return 0
end
return -1
