#!lua flags=allow-oom
-- complete_head: adds the time of the last event to the head of a stream of an earlier schema.
--
-- KEYS  1 head
-- ARGV  1 control, JSON: sequence (text; that of the event), at (its time)
-- RETURNS  1 | 0; 0: it has one, has changed since it was read, or is gone
-- NEVER  creates a head.

local found = redis.call('HMGET', head, 'seq', 'at')
if found[1] ~= control.sequence or found[2] then
  return 0
end
redis.call('HSET', head, 'at', control.at)
return 1
