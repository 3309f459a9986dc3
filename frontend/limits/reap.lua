-- Frees every slot of a process that died, unless its beat has moved after all.
-- KEYS: hash of beats, the process's hash of tickets
-- ARGV: process, its beat, prefix and suffixes of the sets
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
local tickets = redis.call('HGETALL', KEYS[2])
for i = 1, #tickets, 2 do
    redis.call('SREM', ARGV[3] .. tickets[i + 1] .. ARGV[4], tickets[i])
    redis.call('ZREM', ARGV[3] .. tickets[i + 1] .. ARGV[5], tickets[i])
end
redis.call('DEL', KEYS[2])
redis.call('HDEL', KEYS[1], ARGV[1])
return #tickets / 2
