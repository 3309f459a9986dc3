-- A ticket goes, and those that have waited longest take its place. Returns the tickets that became active.
-- KEYS: active set, waiting sorted set, the process's hash of tickets
-- ARGV: ticket, the most active
redis.call('SREM', KEYS[1], ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('HDEL', KEYS[3], ARGV[1])
local came = {}
while redis.call('SCARD', KEYS[1]) < tonumber(ARGV[2]) do
    local first = redis.call('ZPOPMIN', KEYS[2])
    if not first[1] then break end
    redis.call('SADD', KEYS[1], first[1])
    came[#came + 1] = first[1]
end
return came
