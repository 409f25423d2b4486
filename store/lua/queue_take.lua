#!lua
-- queue_take: takes the next task of an agent's queue.
--
-- KEYS  1 waiting  2 turns  3 rested  4 index (of the agent)
-- ARGV  1 control, JSON: unused (the caller whose last turn was not used, and who gets it back; "" for none)
-- USES  int_text
-- RETURNS  the task | ""
-- NEVER  reads more rows than the caller whose turn it is, and two of its tasks, except for callers with a turn and
--        nothing waiting; lets a caller have two turns while another one waits.

if control.unused ~= '' then
  for _, set in ipairs({turns, rested}) do
    local had = redis.call('ZSCORE', set, control.unused)
    if had then
      redis.call('ZADD', set, int_text(tonumber(had) - 1), control.unused)
    end
  end
end
local caller, turn, own
repeat
  local first = redis.call('ZRANGE', turns, 0, 0, 'WITHSCORES')
  if not first[1] then
    redis.call('UNLINK', rested, index)
    return ''
  end
  caller, turn = first[1], tonumber(first[2])
  own = redis.call(
    'ZRANGE', waiting, '[' .. caller .. ' ', '(' .. caller .. '!', 'BYLEX', 'LIMIT', 0, 2
  )
  if not own[1] then
    redis.call('ZREM', turns, caller)
    redis.call('ZADD', rested, int_text(turn), caller)
  end
until own[1]
local task = string.match(own[1], '(%S+)$')
redis.call('ZREM', waiting, own[1])
redis.call('HDEL', index, task)
if own[2] then
  redis.call('ZADD', turns, int_text(turn + 1), caller)
else
  redis.call('ZREM', turns, caller)
  redis.call('ZADD', rested, int_text(turn + 1), caller)
end
redis.call('HSET', index, '', int_text(turn))
-- A rested turn up to this one is no later than that of a new caller.
redis.call('ZREMRANGEBYSCORE', rested, '-inf', int_text(turn))
if redis.call('ZCARD', turns) == 0 then
  redis.call('UNLINK', rested, index)
end
return task
