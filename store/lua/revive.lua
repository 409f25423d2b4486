#!lua flags=allow-oom
-- revive: has a webhook receiver that was given up, or that waits for its next try, tried again now.
--
-- KEYS  1 targets of the stream   2 due   3 stuck targets of the shard
-- ARGV  1 control, JSON: target, stream (its id)
-- RETURNS  ok | live | unknown; live: there was nothing to revive
-- NEVER  moves a cursor: the receiver gets what it has not confirmed, from there on.

local control = cjson.decode(ARGV[1])
local stored = redis.call('HGET', KEYS[1], control.target)
if not stored then
  return 'unknown'
end
local state, filter, cursor = string.match(stored, '^(%a+)|([^|]*)|%d+|([^|]*)|')
if state == 'live' then
  return 'live'
end
redis.call('HSET', KEYS[1], control.target, 'live|' .. filter .. '|0|' .. cursor .. '|0|0|')
redis.call('ZREM', KEYS[3], control.stream .. ' ' .. control.target)
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
redis.call('ZADD', KEYS[2], string.format('%.0f', now), 'target:' .. control.target)
return 'ok'
