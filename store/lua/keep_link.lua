#!lua flags=allow-oom
-- keep_link: renews an open device link, and returns the newest of its connections.
--
-- KEYS  1 record (of the channel)   2 own (set of the driving instance, when it holds a lease)   3 due (with own)
-- ARGV  1 control, JSON: channel, gen (text), keep (ms), inc (text, of the driver), instance
-- USES  server_ms int_text wake_lease
-- RETURNS  the newest generation (text); the record is touched only if that is the caller's
-- NEVER  creates a record.

local newest = redis.call('HGET', record, 'gen') or '0'
if newest ~= control.gen then
  return newest
end
local now = server_ms()
redis.call('HSET', record, 'live', '1', 'instance', control.instance, 'seen', int_text(now))
redis.call('PEXPIRE', record, control.keep)
if own then
  local set = redis.call('HMGET', own, 'inc', 'gone', 'rest')
  if set[1] == control.inc and not set[2] then
    redis.call('HSET', own, 'c:' .. control.channel, control.gen)
    wake_lease(own, due, set[3], now)
  end
end
return newest
