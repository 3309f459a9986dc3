-- Frees the places of a process that died, unless its beat has moved after all. ARGV: process, its beat.
if redis.call('HGET', BEATS, ARGV[1]) ~= ARGV[2] then return 0 end
local tickets = redis.call('HGETALL', tickets_of(ARGV[1]))
for i = 1, #tickets, 2 do forget(tickets[i], tickets[i + 1]) end
redis.call('HDEL', BEATS, ARGV[1])
return #tickets / 2
