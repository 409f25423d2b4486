#!lua
-- queue_drop: removes a task from an agent's queue.
--
-- KEYS  1 waiting  2 turns  3 rested  4 index (of the agent)
-- ARGV  1 control, JSON: task
-- RETURNS  1 if it was queued, else 0
-- NEVER  changes the turn of a caller with further waiting tasks.

local member = redis.call('HGET', index, control.task)
if not member then
  return 0
end
redis.call('ZREM', waiting, member)
redis.call('HDEL', index, control.task)
local caller = string.match(member, '^%S+')
local own = redis.call(
  'ZRANGE', waiting, '[' .. caller .. ' ', '(' .. caller .. '!', 'BYLEX', 'LIMIT', 0, 1
)
if not own[1] then
  local turn = redis.call('ZSCORE', turns, caller)
  redis.call('ZREM', turns, caller)
  redis.call('ZADD', rested, turn or '0', caller)
end
if redis.call('ZCARD', turns) == 0 then
  redis.call('UNLINK', rested, index)
end
return 1
