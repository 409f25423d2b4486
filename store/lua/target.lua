#!lua flags=allow-oom
-- target: records the outcome of a delivery to a webhook receiver and the time of the next try.
--
-- KEYS  1 targets (of the stream)   2 due   3 head (of the stream)   4 stuck (targets of the shard)
-- ARGV  1 control, JSON: target, stream (its id), token (score of the claimed row, text), cursor (whole text) with
--         its epoch and seq (text), state (live | backoff | dead | done), tries, since, refusals, reason,
--         delay (ms until the next try), hold (ms for which a live target that is behind stays claimed, or 0)
-- USES  server_ms int_text CURSOR TARGET TARGET_FORMAT
-- RETURNS  ok token | unclaimed; token: of a row that stays claimed, else ""
-- NEVER  moves a cursor back within one epoch, or drops the row of a live target that is behind the head.

local row = 'target:' .. control.target
local entry = control.stream .. ' ' .. control.target
if redis.call('ZSCORE', due, row) ~= control.token then
  return {'unclaimed'}
end
local stored = redis.call('HGET', targets, control.target)
if not stored then
  redis.call('ZREM', due, row)
  redis.call('ZREM', stuck, entry)
  return {'unclaimed'}
end
if control.state == 'done' then
  redis.call('HDEL', targets, control.target)
  redis.call('ZREM', due, row)
  redis.call('ZREM', stuck, entry)
  return {'ok', ''}
end
local _, filter, _, cursor = string.match(stored, TARGET)
local epoch, sequence = string.match(cursor, CURSOR)
if epoch ~= control.epoch or tonumber(sequence) < tonumber(control.seq) then
  cursor = control.cursor
end
redis.call('HSET', targets, control.target, string.format(TARGET_FORMAT,
  control.state, filter, int_text(control.tries), cursor, int_text(control.since), int_text(control.refusals),
  control.reason))

local now = server_ms()
if control.state == 'live' then
  redis.call('ZREM', stuck, entry)
else
  redis.call('ZADD', stuck, int_text(control.since), entry)
end
if control.state == 'dead' then
  redis.call('ZREM', due, row)
  return {'ok', ''}
end
if control.state == 'backoff' then
  redis.call('ZADD', due, int_text(now + control.delay), row)
  return {'ok', ''}
end
local top = redis.call('HMGET', head, 'epoch', 'seq')
local _, at = string.match(cursor, CURSOR)
if top[1] == control.epoch and top[2] == at then
  redis.call('ZREM', due, row)
  return {'ok', ''}
end
local token = int_text(now + control.hold)
redis.call('ZADD', due, token, row)
return {'ok', control.hold > 0 and token or ''}
