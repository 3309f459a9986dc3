-- A process says which tickets of a key it still has, which puts back what Redis has lost, and hears which are active.
-- KEYS: active set, waiting sorted set, sequence, the process's hash of tickets
-- ARGV: key id, the most active, number of active tickets, then those, then the waiting ones
local actives = tonumber(ARGV[3])
for i = 4, #ARGV do
    redis.call('HSET', KEYS[4], ARGV[i], ARGV[1])
    if i < 4 + actives then
        redis.call('SADD', KEYS[1], ARGV[i])
    elseif redis.call('SISMEMBER', KEYS[1], ARGV[i]) == 0 and not redis.call('ZSCORE', KEYS[2], ARGV[i]) then
        redis.call('ZADD', KEYS[2], redis.call('INCR', KEYS[3]), ARGV[i])
    end
end
while redis.call('SCARD', KEYS[1]) < tonumber(ARGV[2]) do
    local first = redis.call('ZPOPMIN', KEYS[2])
    if not first[1] then break end
    redis.call('SADD', KEYS[1], first[1])
end
local now_active = {}
for i = 4 + actives, #ARGV do
    if redis.call('SISMEMBER', KEYS[1], ARGV[i]) == 1 then now_active[#now_active + 1] = ARGV[i] end
end
return now_active
