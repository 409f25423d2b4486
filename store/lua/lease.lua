#!lua flags=allow-oom
-- lease: opens or extends the one lease of an instance in a shard, and the shard's duty when asked for.
--
-- KEYS  1 own set of the instance   2 duty   3 due   4 instances that have a lease here   5 shard meta
-- ARGV  1 control, JSON: instance, inc (text), opens, duty (wanted), length (ms), seen (shard epoch since which the
--         instance has compared what it drives with its set, text)
-- RETURNS  ok until now duty(0|1) free found epoch | lost
--          free is when a duty that was asked for ends at another instance, or ""; found is when the lease ended before,
--          or "" where it is opened; epoch is that of the shard
-- NEVER  extends a set that is missing, gone or of another incarnation: a frozen instance may wake after
--        its set was emptied and deleted.

local control = cjson.decode(ARGV[1])
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local untilms = string.format('%.0f', now + control.length)

local set = redis.call('HMGET', KEYS[1], 'inc', 'gone', 'until', 'seen')
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
  redis.call('SADD', KEYS[4], control.instance)
end
-- Only what changes is written: this runs several times in each lease, in every shard.
if ours and set[4] == control.seen then
  redis.call('HSET', KEYS[1], 'until', untilms)
else
  redis.call('HSET', KEYS[1], 'inc', control.inc, 'until', untilms, 'seen', control.seen)
end
redis.call('ZADD', KEYS[3], untilms, 'own:' .. control.instance)

local holds, free = 0, ''
local duty = redis.call('HMGET', KEYS[2], 'owner', 'until', 'inc')
local expired = not duty[1] or tonumber(duty[2]) <= now
if control.duty and (expired or duty[1] == control.instance) then
  if duty[1] == control.instance and duty[3] == control.inc then
    redis.call('HSET', KEYS[2], 'until', untilms)
  else
    redis.call('HSET', KEYS[2], 'owner', control.instance, 'inc', control.inc, 'until', untilms)
  end
  -- 'until' decides; the key goes by itself some time after nobody extends it.
  if redis.call('PTTL', KEYS[2]) < 2 * control.length then
    redis.call('PEXPIRE', KEYS[2], string.format('%.0f', 8 * control.length))
  end
  holds = 1
elseif control.duty then
  free = duty[2]
elseif not control.duty and duty[1] == control.instance then
  redis.call('UNLINK', KEYS[2])
end
local found = ours and set[3] or ''
local epoch = redis.call('HGET', KEYS[5], 'epoch') or '0'
return {'ok', untilms, string.format('%.0f', now), holds, free, found, epoch}
