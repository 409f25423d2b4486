#!lua
-- save_shared: writes one version of a task that an agent's replicas share, and adds the event that made it.
--
-- KEYS  1 task   2 its events   3 hint channel
-- ARGV  1 control, JSON:
--         op        id of this call, letters and digits
--         expected  version that the task must have, as text; false: any, if the task exists and has not ended
--         owner     owner of the task; a task of another owner is a conflict
--         context, state, time   what lists filter and sort by, as text
--         ended     whether the task has ended with this version
--         event     whether ARGV[3] is an event
--         keep      number of events to keep
--         ttl       ms for which events are kept after the end, as text
--         If the events have expired, they count as trimmed, and the new event expires after the same delay.
--       2 the task   3 the event
-- RETURNS  ok version time | conflict; time: of the previous version, empty if unknown
-- NEVER  parses the task or the event, assigns a version twice, or writes before every check has passed.

local control = cjson.decode(ARGV[1])
local task, events = KEYS[1], KEYS[2]
local found = redis.call('HMGET', task, 'v', 'o', 'end', 'ops', 'ts', 'last')
local version, ended, ops = found[1] or '0', found[3] == '1', found[4] or ''

-- Repeated call: its reply was lost, and others may have written since.
local before = string.match(ops, control.op .. '=(%d+);')
if before then
  return {'ok', before, ''}
end
if found[2] and found[2] ~= control.owner then
  return {'conflict'}
end
if control.expected then
  if control.expected ~= version then
    return {'conflict'}
  end
elseif version == '0' or ended then
  return {'conflict'}
end

version = string.format('%.0f', tonumber(version) + 1)
if control.event then
  -- All events of a task expire together. A stream created after that lacks the earlier events and has no expiry yet.
  local expired = found[6] and redis.call('XLEN', events) == 0
  redis.call('XADD', events, version .. '-0', 'd', ARGV[3])
  redis.call('HSET', task, 'last', version)
  if expired then
    redis.call('HSET', task, 'cut', found[6])
    redis.call('PEXPIRE', events, control.ttl)
  end
  local extra = redis.call('XLEN', events) - control.keep
  if extra > 0 then
    local gone = redis.call('XRANGE', events, '-', '+', 'COUNT', extra)
    local cut = tonumber(string.match(gone[#gone][1], '^%d+'))
    redis.call('XTRIM', events, 'MINID', string.format('%.0f-0', cut + 1))
    redis.call('HSET', task, 'cut', string.format('%.0f', cut))
  end
end
ops = ops .. control.op .. '=' .. version .. ';'
while #ops > 512 do
  ops = string.match(ops, '^[^;]*;(.*)$')
end
redis.call('HSET', task, 'v', version, 'o', control.owner, 'd', ARGV[2], 'ops', ops,
  'end', control.ended and '1' or '0', 'c', control.context, 'st', control.state, 'ts', control.time)
if control.ended then
  redis.call('PEXPIRE', events, control.ttl)
end
redis.call('SPUBLISH', KEYS[3], version)
return {'ok', version, found[5] or ''}
