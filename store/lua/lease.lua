#!lua flags=allow-oom
-- lease: opens or extends the one lease of an instance in a shard, and the shard's duty when asked for.
--
-- KEYS  1 own set of the instance   2 duty   3 due   4 instances that have a lease here   5 shard meta
-- ARGV  1 control, JSON: instance, inc (text), opens, duty (wanted), length (ms), seen (shard epoch since which the
--         instance has compared what it drives with its set, text), rest (ms; 0: the lease does not rest),
--         living (instances that live, for who wants the duty), hold (ms, how long a duty is had)
-- RETURNS  ok until now duty(0|1) found epoch | lost
--          until is when the lease ends, by the set: of one that rests, when it would have ended; found is what the set
--          said before, or "" where it is opened; epoch is that of the shard
-- NEVER  extends a set that is missing, gone or of another incarnation: a frozen instance may wake after
--        its set was emptied and deleted. Never rests a lease under which something is driven.
--
-- A lease under which nothing is driven rests when it may: there is nothing to take over, so its end is not written
-- any more, and its row comes due in 'rest' ms, for the set of the dead to be deleted. Whatever enters the set wakes it
-- in the same call: field 'rest', the length of the lease, is taken out, and the row is due at its end.

local control = cjson.decode(ARGV[1])
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local untilms = string.format('%.0f', now + control.length)
local row = 'own:' .. control.instance

local set = redis.call('HMGET', KEYS[1], 'inc', 'gone', 'until', 'seen', 'rest')
local ours = set[1] == control.inc and not set[2]
if not ours then
  if not control.opens then
    return {'lost'}
  end
  if set[1] then
    for _, name in ipairs(redis.call('HKEYS', KEYS[1])) do
      if string.sub(name, 2, 2) == ':' then
        return {'lost'}
      end
    end
    redis.call('UNLINK', KEYS[1])
  end
  redis.call('SADD', KEYS[4], control.instance)
end

-- Only what changes is written: this runs several times in each lease, in every shard.
local found = ours and set[3] or ''
-- Besides inc, until and seen there are rest, and what is driven.
local rests = control.rest > 0 and (not ours or redis.call('HLEN', KEYS[1]) == (set[5] and 4 or 3))
local length = string.format('%.0f', control.length)
if ours and rests and set[5] == length and set[4] == control.seen then
  untilms = set[3]
else
  local fields = {'until', untilms}
  if not ours or set[4] ~= control.seen then
    fields[3], fields[4], fields[5], fields[6] = 'inc', control.inc, 'seen', control.seen
  end
  if rests then
    fields[#fields + 1] = 'rest'
    fields[#fields + 1] = length
  elseif ours and set[5] then
    redis.call('HDEL', KEYS[1], 'rest')
  end
  redis.call('HSET', KEYS[1], unpack(fields))
end
if not rests then
  redis.call('ZADD', KEYS[3], untilms, row)
else
  local due = tonumber(redis.call('ZSCORE', KEYS[3], row) or '0')
  if due < now + control.rest / 2 then
    redis.call('ZADD', KEYS[3], string.format('%.0f', now + control.rest), row)
  end
end

-- A duty is held by the word of its owner that it lives, not by its end, which is far away.
local holds = 0
local duty = redis.call('HMGET', KEYS[2], 'owner', 'until', 'inc')
if not control.duty then
  if duty[1] == control.instance then
    redis.call('UNLINK', KEYS[2])
  end
else
  local mine = duty[1] == control.instance
  local free = not duty[1] or tonumber(duty[2]) <= now
  if not mine and not free then
    free = true
    for _, name in ipairs(control.living) do
      free = free and name ~= duty[1]
    end
  end
  if mine or free then
    holds = 1
    if not mine or duty[3] ~= control.inc or tonumber(duty[2]) < now + control.hold / 2 then
      local ends = string.format('%.0f', now + control.hold)
      redis.call('HSET', KEYS[2], 'owner', control.instance, 'inc', control.inc, 'until', ends)
      redis.call('PEXPIRE', KEYS[2], string.format('%.0f', control.hold))
    end
  end
end
local epoch = redis.call('HGET', KEYS[5], 'epoch') or '0'
return {'ok', untilms, string.format('%.0f', now), holds, found, epoch}
