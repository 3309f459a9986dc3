-- A process says which tickets of a key it has, and hears which of the waiting ones are active.
-- If the process is not known here, everything was lost, and what it says is put back.
-- KEYS: active set, waiting sorted set, sequence, the process's hash of tickets, hash of beats
-- ARGV: key id, the most active, process, number of active tickets, then those, then the waiting ones
local actives = tonumber(ARGV[4])
if redis.call('HEXISTS', KEYS[5], ARGV[3]) == 0 then
    for i = 5, #ARGV do
        redis.call('HSET', KEYS[4], ARGV[i], ARGV[1])
        if i < 5 + actives then
            redis.call('SADD', KEYS[1], ARGV[i])
        elseif not redis.call('ZSCORE', KEYS[2], ARGV[i]) then
            redis.call('ZADD', KEYS[2], redis.call('INCR', KEYS[3]), ARGV[i])
        end
    end
end
while redis.call('SCARD', KEYS[1]) < tonumber(ARGV[2]) do
    local first = redis.call('ZPOPMIN', KEYS[2])
    if not first[1] then break end
    redis.call('SADD', KEYS[1], first[1])
end
local now_active = {}
for i = 5 + actives, #ARGV do
    if redis.call('SISMEMBER', KEYS[1], ARGV[i]) == 1 then now_active[#now_active + 1] = ARGV[i] end
end
return now_active
