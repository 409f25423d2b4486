#!lua
-- queue_drop: takes a task out of the line of an agent that waits no more.
--
-- KEYS  1 waiting  2 turns  3 rested  4 index (of the agent)
-- ARGV  1 control, JSON: task
-- RETURNS  1 when it was there, else 0
-- NEVER  changes the turn of a caller who has more waiting.

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
