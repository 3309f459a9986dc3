-- Close a model at an endpoint, so that it may be unloaded: only if no request is there, none waits that could go there,
-- and none was there for so many seconds. ARGV: model, endpoint, seconds. Returns 1 if it is closed now.
local model, endpoint = ARGV[1], ARGV[2]
local place = model .. '@' .. endpoint
if redis.call('HEXISTS', CLOSED, place) == 1 then return 1 end
if redis.call('SCARD', active(model, endpoint)) > 0 then return 0 end
if redis.call('ZCARD', queue(model)) > 0 and redis.call('SISMEMBER', DRAINED, endpoint) == 0 then return 0 end
local last = redis.call('HGET', LAST_USED, place)
if not last then
    redis.call('HSET', LAST_USED, place, now())
    last = now()
end
if now() - tonumber(last) < tonumber(ARGV[3]) then return 0 end
redis.call('HSET', CLOSED, place, 1)
return 1
