#!lua
-- queue_add: adds a task to an agent's queue, or moves it: within its caller's tasks, or to another caller.
--
-- KEYS  1 waiting  2 turns  3 rested  4 index (of the agent)
-- ARGV  1 control, JSON: task, caller, order (fixed width: sorts the tasks of one caller)
-- USES  int_text
-- RETURNS  {1 if it was not queued, how many wait now}
-- NEVER  reads more than one row of another task; gives a caller an earlier turn than it had; keeps the turn of a
--        caller without waiting tasks.

local member = control.caller .. ' ' .. control.order .. ' ' .. control.task
local known = redis.call('HGET', index, control.task)
local before = known and string.match(known, '^%S+')
if before == control.caller then
  if known ~= member then
    redis.call('ZREM', waiting, known)
    redis.call('ZADD', waiting, '0', member)
    redis.call('HSET', index, control.task, member)
  end
  return {0, redis.call('ZCARD', waiting)}
end
if before then
  -- It was transferred while it waits: its old caller may have nothing left here.
  redis.call('ZREM', waiting, known)
  local own = redis.call(
    'ZRANGE', waiting, '[' .. before .. ' ', '(' .. before .. '!', 'BYLEX', 'LIMIT', 0, 1
  )
  if not own[1] then
    local turn = redis.call('ZSCORE', turns, before)
    redis.call('ZREM', turns, before)
    redis.call('ZADD', rested, turn or '0', before)
  end
end
redis.call('ZADD', waiting, '0', member)
redis.call('HSET', index, control.task, member)
if not redis.call('ZSCORE', turns, control.caller) then
  -- A caller served recently comes behind those that have waited since then.
  local served = tonumber(redis.call('HGET', index, '') or '0')
  local own = tonumber(redis.call('ZSCORE', rested, control.caller) or '0')
  redis.call('ZADD', turns, int_text(math.max(served, own)), control.caller)
  redis.call('ZREM', rested, control.caller)
end
return {before and 0 or 1, redis.call('ZCARD', waiting)}
