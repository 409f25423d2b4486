#!lua flags=allow-oom
-- release: ends a lease at shutdown, so that the duty owner takes its runs over at once.
--
-- KEYS  1 own set of the instance   2 duty   3 due   4 instances that have a lease here
-- ARGV  1 control, JSON: instance, inc (text)
-- RETURNS  ok | lost
-- NEVER  deletes a set that still names a run or a channel, or ends what a later life of the instance holds.

local control = cjson.decode(ARGV[1])
local row = 'own:' .. control.instance
local duty = redis.call('HMGET', KEYS[2], 'owner', 'inc')
if duty[1] == control.instance and duty[2] == control.inc then
  redis.call('UNLINK', KEYS[2])
end
if redis.call('HGET', KEYS[1], 'inc') ~= control.inc then
  return 'lost'
end
local fields = redis.call('HGETALL', KEYS[1])
for n = 1, #fields, 2 do
  if string.sub(fields[n], 2, 2) == ':' then
    local time = redis.call('TIME')
    local now = string.format('%.0f', tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000))
    redis.call('HSET', KEYS[1], 'until', now)
    redis.call('ZADD', KEYS[3], now, row)
    return 'ok'
  end
end
redis.call('UNLINK', KEYS[1])
redis.call('ZREM', KEYS[3], row)
redis.call('SREM', KEYS[4], control.instance)
return 'ok'
