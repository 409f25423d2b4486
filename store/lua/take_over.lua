#!lua flags=allow-oom
-- take_over: marks an expired lease as gone and returns what was driven under it.
--
-- KEYS  1 own (set of the instance)   2 due   3 lessees (instances that have a lease here)
-- ARGV  1 control, JSON: instance
-- USES  server_ms
-- RETURNS  alive | gone inc {run, task, run, task, ...} {channel, ...}
--          An empty or missing set is deleted with its due row, and both lists are empty then.
-- NEVER  moves a run: each is moved by an append that names both sets. The row stays until the set is
--        empty, so that a crash in between repeats the call.

local row = 'own:' .. control.instance
local now = server_ms()

local fields = redis.call('HGETALL', own)
local set, runs, channels = {}, {}, {}
for n = 1, #fields, 2 do
  local kind, name = string.match(fields[n], '^(%a):(.+)$')
  if kind == 'r' then
    runs[#runs + 1] = name
    runs[#runs + 1] = fields[n + 1]
  elseif kind == 'c' then
    channels[#channels + 1] = name
  else
    set[fields[n]] = fields[n + 1]
  end
end
if not set.gone and set['until'] and (tonumber(set['until']) or 0) > now then
  redis.call('ZADD', due, set['until'], row)
  return {'alive'}
end
if #runs == 0 and #channels == 0 then
  redis.call('UNLINK', own)
  redis.call('ZREM', due, row)
  redis.call('SREM', lessees, control.instance)
else
  redis.call('HSET', own, 'gone', '1')
end
return {'gone', set.inc or '0', runs, channels}
