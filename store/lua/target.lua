#!lua flags=allow-oom
-- target: records what became of a delivery to a webhook receiver and when to try next.
--
-- KEYS  1 targets of the stream   2 due   3 stream head   4 stuck targets of the shard
-- ARGV  1 control, JSON: target, stream (its id), token (score of the claimed row, text), cursor (whole text) with
--         its epoch and seq (text), state (live | backoff | dead | done), tries, since, refusals, reason,
--         delay (ms until the next try), hold (ms for which a live target that is behind stays claimed, or 0)
-- RETURNS  ok token | unclaimed; token: of a row that stays claimed, else ""
-- NEVER  moves a cursor back within one epoch, or drops the row of a live target that is behind the head.

local control = cjson.decode(ARGV[1])
local row = 'target:' .. control.target
local entry = control.stream .. ' ' .. control.target
if redis.call('ZSCORE', KEYS[2], row) ~= control.token then
  return {'unclaimed'}
end
local stored = redis.call('HGET', KEYS[1], control.target)
if not stored then
  redis.call('ZREM', KEYS[2], row)
  redis.call('ZREM', KEYS[4], entry)
  return {'unclaimed'}
end
if control.state == 'done' then
  redis.call('HDEL', KEYS[1], control.target)
  redis.call('ZREM', KEYS[2], row)
  redis.call('ZREM', KEYS[4], entry)
  return {'ok', ''}
end
local filter, cursor = string.match(stored, '^%a+|([^|]*)|%d+|([^|]*)|')
local epoch, sequence = string.match(cursor, '^(%x+)%.(%d+)%.')
if epoch ~= control.epoch or tonumber(sequence) < tonumber(control.seq) then
  cursor = control.cursor
end
redis.call('HSET', KEYS[1], control.target, table.concat({
  control.state, filter, string.format('%.0f', control.tries), cursor,
  string.format('%.0f', control.since), string.format('%.0f', control.refusals), control.reason}, '|'))

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
if control.state == 'live' then
  redis.call('ZREM', KEYS[4], entry)
else
  redis.call('ZADD', KEYS[4], string.format('%.0f', control.since), entry)
end
if control.state == 'dead' then
  redis.call('ZREM', KEYS[2], row)
  return {'ok', ''}
end
if control.state == 'backoff' then
  redis.call('ZADD', KEYS[2], string.format('%.0f', now + control.delay), row)
  return {'ok', ''}
end
local head = redis.call('HMGET', KEYS[3], 'epoch', 'seq')
local at = string.match(cursor, '^%x+%.(%d+)%.')
if head[1] == control.epoch and head[2] == at then
  redis.call('ZREM', KEYS[2], row)
  return {'ok', ''}
end
local token = string.format('%.0f', now + control.hold)
redis.call('ZADD', KEYS[2], token, row)
return {'ok', control.hold > 0 and token or ''}
