-- A keeper moves its beat, if it is the one that works, and becomes that one if there is none, or if the one that was has
-- not moved the beat that was seen. KEYS: the hash of who works. ARGV: the keeper's name, the beat of a dead one or ''.
-- `at` is when, for people who ask whether a keeper works. Returns whether this one works, and the beat.
local name, beat = redis.call('HGET', KEYS[1], 'name'), redis.call('HGET', KEYS[1], 'beat')
if not name or name == ARGV[1] or (ARGV[2] ~= '' and beat == ARGV[2]) then
    redis.call('HSET', KEYS[1], 'name', ARGV[1], 'at', redis.call('TIME')[1])
    return {1, redis.call('HINCRBY', KEYS[1], 'beat', 1)}
end
return {0, tonumber(beat)}
