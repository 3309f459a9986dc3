-- A ticket goes, and others come in. ARGV: process, ticket, model, the most active, seconds that it took ('' if that says
-- nothing), the endpoints where the model is Warm.
local known = redis.call('HGET', tickets_of(ARGV[1]), ARGV[2])
if known then
    local endpoint = forget(ARGV[2], known)
    if endpoint ~= '' and ARGV[5] ~= '' then
        -- What a request takes: the mean of the last twenty or so.
        local before, this = tonumber(redis.call('HGET', SECONDS, ARGV[3]) or ARGV[5]), tonumber(ARGV[5])
        redis.call('HSET', SECONDS, ARGV[3], tostring(before + (this - before) / 20))
    end
end
advance(ARGV[3], tonumber(ARGV[4]), rest(6))
