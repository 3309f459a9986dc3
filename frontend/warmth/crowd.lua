-- Who is at a model and who waits for it. ARGV: model, the endpoints where it is Warm.
-- Returns: people's requests that are active, that wait; those of Jobs, active or not; seconds since a person asked, or -1.
local model, endpoints = ARGV[1], rest(2)
local running, waiting, of_jobs = 0, 0, 0
for _, endpoint in ipairs(endpoints) do
    for _, ticket in ipairs(redis.call('SMEMBERS', active(model, endpoint))) do
        if is_of_job(ticket) then of_jobs = of_jobs + 1 else running = running + 1 end
    end
end
for _, ticket in ipairs(redis.call('ZRANGE', queue(model), 0, -1)) do
    if is_of_job(ticket) then of_jobs = of_jobs + 1 else waiting = waiting + 1 end
end
local asked = redis.call('HGET', LAST_ASKED, model)
return {running, waiting, of_jobs, asked and math.max(now() - tonumber(asked), 0) or -1}
