#!lua flags=allow-oom
-- delete_shared: removes a task that an agent's replicas share, with its events.
--
-- KEYS  1 task   2 its events   3 hint channel
-- ARGV  1 control, JSON: owner
-- RETURNS  1 if the task existed and belongs to the owner, else 0
-- NEVER  removes the task of another owner.

local control = cjson.decode(ARGV[1])
if redis.call('HGET', KEYS[1], 'o') ~= control.owner then
  return 0
end
redis.call('UNLINK', KEYS[1], KEYS[2])
redis.call('SPUBLISH', KEYS[3], '0')
return 1
