-- What all scripts about places begin with: where things are, and who is let in next.
-- A ticket is a request's. It is at an endpoint (a Triton) of its model, or waits in the model's queue. Of the people in
-- a queue, the one who was let in longest ago is next, with the oldest ticket: so it is fair between people.
local P = 'strata:places:'
local SEQUENCE, BEATS, CLOSED, DRAINED = P .. 'sequence', P .. 'beats', P .. 'closed', 'strata:drained'
local LAST_USED, SECONDS, LAST_ASKED = P .. 'last-used', P .. 'seconds', P .. 'last-asked'
local function tickets_of(process) return P .. 'of:' .. process end
local function active(model, endpoint) return P .. model .. '@' .. endpoint end
local function queue(model) return P .. model .. ':queue' end
local function queue_of(model, account) return P .. model .. ':queue:' .. account end
local function people(model) return P .. model .. ':people' end
local function served(model) return P .. model .. ':served' end
local function process_of(ticket) return string.match(ticket, '^[^:]+') end
-- Those who work on Jobs have names of their own, so that people's requests can go first.
local function is_of_job(ticket) return string.sub(ticket, 1, 4) == 'job-' end
local function record(model, account, endpoint) return model .. '|' .. account .. '|' .. endpoint end
local function parse(text) return string.match(text, '^([^|]*)|([^|]*)|(.*)$') end
local function now() return tonumber(redis.call('TIME')[1]) end

local function enqueue(model, account, ticket)
    redis.call('HSET', tickets_of(process_of(ticket)), ticket, record(model, account, ''))
    if redis.call('ZSCORE', queue(model), ticket) then return end
    local at = redis.call('INCR', SEQUENCE)
    redis.call('ZADD', queue(model), at, ticket)
    redis.call('ZADD', queue_of(model, account), at, ticket)
    redis.call('ZADD', people(model), redis.call('ZSCORE', served(model), account) or 0, account)
end

local function put(model, account, ticket, endpoint)
    redis.call('HSET', tickets_of(process_of(ticket)), ticket, record(model, account, endpoint))
    redis.call('SADD', active(model, endpoint), ticket)
    redis.call('HSET', LAST_USED, model .. '@' .. endpoint, now())
end

local function dequeue(model, account, ticket)
    redis.call('ZREM', queue(model), ticket)
    redis.call('ZREM', queue_of(model, account), ticket)
    if redis.call('ZCARD', queue_of(model, account)) == 0 then redis.call('ZREM', people(model), account) end
end

-- Those endpoints that take requests now, and how many requests each has.
local function counts(model, endpoints)
    local found = {}
    for _, endpoint in ipairs(endpoints) do
        if redis.call('HEXISTS', CLOSED, model .. '@' .. endpoint) == 0
                and redis.call('SISMEMBER', DRAINED, endpoint) == 0 then
            found[endpoint] = redis.call('SCARD', active(model, endpoint))
        end
    end
    return found
end

-- Let in whoever there is room for, each where the fewest requests are.
local function advance(model, capacity, endpoints)
    if redis.call('ZCARD', queue(model)) == 0 then return end
    local found = counts(model, endpoints)
    while true do
        local best
        for _, endpoint in ipairs(endpoints) do
            local count = found[endpoint]
            if count and count < capacity and (not best or count < found[best]) then best = endpoint end
        end
        local account = redis.call('ZRANGE', people(model), 0, 0)[1]
        if not best or not account then return end
        local ticket = redis.call('ZRANGE', queue_of(model, account), 0, 0)[1]
        local at = redis.call('INCR', SEQUENCE)
        redis.call('ZADD', served(model), at, account)
        redis.call('ZREMRANGEBYRANK', served(model), 0, -1001)
        redis.call('ZADD', people(model), at, account)
        if ticket then
            dequeue(model, account, ticket)
            put(model, account, ticket, best)
            found[best] = found[best] + 1
        else
            redis.call('ZREM', people(model), account)
        end
    end
end

local function forget(ticket, text)
    local model, account, endpoint = parse(text)
    if endpoint == '' then
        dequeue(model, account, ticket)
    else
        redis.call('SREM', active(model, endpoint), ticket)
        redis.call('HSET', LAST_USED, model .. '@' .. endpoint, now())
    end
    redis.call('HDEL', tickets_of(process_of(ticket)), ticket)
    return endpoint
end

local function rest(first)
    local found = {}
    for i = first, #ARGV do found[#found + 1] = ARGV[i] end
    return found
end
