#!lua flags=allow-oom
-- revive: retries a webhook receiver now that was given up, or waits for its next try.
--
-- KEYS  1 targets (of the stream)   2 due   3 stuck (targets of the shard)
-- ARGV  1 control, JSON: target, stream (its id)
-- USES  server_ms int_text TARGET LIVE_TARGET_FORMAT
-- RETURNS  ok | live | unknown; live: there was nothing to revive
-- NEVER  moves a cursor: the receiver gets everything after its confirmed cursor.

local stored = redis.call('HGET', targets, control.target)
if not stored then
  return 'unknown'
end
local state, filter, _, cursor = string.match(stored, TARGET)
if state == 'live' then
  return 'live'
end
redis.call('HSET', targets, control.target, string.format(LIVE_TARGET_FORMAT, filter, cursor))
redis.call('ZREM', stuck, control.stream .. ' ' .. control.target)
local now = server_ms()
redis.call('ZADD', due, int_text(now), 'target:' .. control.target)
return 'ok'
