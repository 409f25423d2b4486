#!lua flags=allow-oom
-- lease: opens or extends the one lease of an instance in a shard, and the shard's duty when asked for.
--
-- KEYS  1 own set of the instance   2 duty   3 due
-- ARGV  1 control, JSON: instance, inc (text), opens, duty (wanted), length (ms)
-- RETURNS  ok until now duty(0|1) free | lost; free is when a duty that was asked for ends at another instance, or ""
-- NEVER  extends a set that is missing, gone or of another incarnation: a frozen instance may wake after
--        its set was emptied and deleted.

local control = cjson.decode(ARGV[1])
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local untilms = string.format('%.0f', now + control.length)

local set = redis.call('HMGET', KEYS[1], 'inc', 'gone')
local ours = set[1] == control.inc and not set[2]
if not ours then
  if not control.opens then
    return {'lost'}
  end
  if set[1] then
    local fields = redis.call('HGETALL', KEYS[1])
    for n = 1, #fields, 2 do
      if string.sub(fields[n], 2, 2) == ':' then
        return {'lost'}
      end
    end
    redis.call('UNLINK', KEYS[1])
  end
end
redis.call('HSET', KEYS[1], 'inc', control.inc, 'until', untilms)
redis.call('ZADD', KEYS[3], untilms, 'own:' .. control.instance)

local holds, free = 0, ''
local duty = redis.call('HMGET', KEYS[2], 'owner', 'until')
local expired = not duty[1] or tonumber(duty[2]) <= now
if control.duty and (expired or duty[1] == control.instance) then
  redis.call('HSET', KEYS[2], 'owner', control.instance, 'inc', control.inc, 'until', untilms)
  redis.call('PEXPIRE', KEYS[2], string.format('%.0f', control.length))
  holds = 1
elseif control.duty then
  free = duty[2]
elseif not control.duty and duty[1] == control.instance then
  redis.call('UNLINK', KEYS[2])
end
return {'ok', untilms, string.format('%.0f', now), holds, free}
