#!lua flags=allow-oom
-- release: ends a lease at shutdown, so that the duty owner takes its runs over at once.
--
-- KEYS  1 own (set of the instance)   2 duty   3 due   4 lessees (instances that have a lease here)
-- ARGV  1 control, JSON: instance, inc (text)
-- USES  server_ms int_text
-- RETURNS  ok | lost
-- NEVER  deletes a set that still names a run or a channel, or ends a lease of a later incarnation.

local row = 'own:' .. control.instance
local owner = redis.call('HMGET', duty, 'owner', 'inc')
if owner[1] == control.instance and owner[2] == control.inc then
  redis.call('UNLINK', duty)
end
if redis.call('HGET', own, 'inc') ~= control.inc then
  return 'lost'
end
local fields = redis.call('HGETALL', own)
for n = 1, #fields, 2 do
  if string.sub(fields[n], 2, 2) == ':' then
    local now = int_text(server_ms())
    redis.call('HSET', own, 'until', now)
    redis.call('ZADD', due, now, row)
    return 'ok'
  end
end
redis.call('UNLINK', own)
redis.call('ZREM', due, row)
redis.call('SREM', lessees, control.instance)
return 'ok'
