#!lua flags=allow-oom
-- take_over: marks an expired lease as gone and says what was driven under it.
--
-- KEYS  1 own set of the instance   2 due   3 instances that have a lease here
-- ARGV  1 control, JSON: instance
-- RETURNS  alive | gone inc {run, task, run, task, ...} {channel, ...}
--          An empty or missing set is deleted with its due row, and both lists are empty then.
-- NEVER  moves a run: each is moved by an append that names both sets. The row stays until the set is
--        empty, so that a crash in between repeats the call.

local control = cjson.decode(ARGV[1])
local row = 'own:' .. control.instance
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

local fields = redis.call('HGETALL', KEYS[1])
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
if not set.gone and set['until'] and tonumber(set['until']) > now then
  redis.call('ZADD', KEYS[2], set['until'], row)
  return {'alive'}
end
if #runs == 0 and #channels == 0 then
  redis.call('UNLINK', KEYS[1])
  redis.call('ZREM', KEYS[2], row)
  redis.call('SREM', KEYS[3], control.instance)
else
  redis.call('HSET', KEYS[1], 'gone', '1')
end
return {'gone', set.inc or '0', runs, channels}
