#!lua flags=allow-oom
-- lease: opens or extends the one lease of an instance in a shard, and the shard's duty if requested.
--
-- KEYS  1 own (set of the instance)   2 duty   3 due   4 lessees (instances that have a lease here)
--       5 meta (of the shard)
-- ARGV  1 control, JSON: instance, inc (text), opens, duty (wanted), length (ms), seen (shard epoch since which the
--         instance has compared what it drives with its set, text), rest (ms; 0: the lease does not rest),
--         living (live instances, if the duty is wanted), hold (ms, how long a duty is held)
-- USES  server_ms int_text
-- RETURNS  ok until now duty(0|1) found epoch | lost
--          until is the end of the lease, by the set: of a resting one, when it would have ended; found is the until
--          before the call, or "" if it was opened; epoch is that of the shard
-- NEVER  extends a set that is missing, gone or of another incarnation: a frozen instance may wake after
--        its set was emptied and deleted. Never rests a lease under which something is driven.
--
-- A lease under which nothing is driven may rest: there is nothing to take over, so its end is not renewed any more,
-- and its row comes due in 'rest' ms, to delete the set if the instance is dead. Adding anything to the set wakes it in
-- the same call: field 'rest', the length of the lease, is removed, and the row is due at its end.

local now = server_ms()
local untilms = int_text(now + control.length)
local row = 'own:' .. control.instance

local set = redis.call('HMGET', own, 'inc', 'gone', 'until', 'seen', 'rest')
local ours = set[1] == control.inc and not set[2]
if not ours then
  if not control.opens then
    return {'lost'}
  end
  if set[1] then
    for _, name in ipairs(redis.call('HKEYS', own)) do
      if string.sub(name, 2, 2) == ':' then
        return {'lost'}
      end
    end
    redis.call('UNLINK', own)
  end
  redis.call('SADD', lessees, control.instance)
end

-- Only changes are written: this runs several times in each lease, in every shard.
local found = ours and set[3] or ''
-- Besides inc, until and seen the set has rest, and what is driven.
local rests = control.rest > 0 and (not ours or redis.call('HLEN', own) == (set[5] and 4 or 3))
local length = int_text(control.length)
if ours and rests and set[5] == length and set[4] == control.seen and tonumber(set[3]) then
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
    redis.call('HDEL', own, 'rest')
  end
  redis.call('HSET', own, unpack(fields))
end
if not rests then
  redis.call('ZADD', due, untilms, row)
else
  local at = tonumber(redis.call('ZSCORE', due, row) or '0')
  if at < now + control.rest / 2 then
    redis.call('ZADD', due, int_text(now + control.rest), row)
  end
end

-- A duty is held as long as its owner announces itself, not until its end, which is far away.
local holds = 0
local owner = redis.call('HMGET', duty, 'owner', 'until', 'inc')
if not control.duty then
  if owner[1] == control.instance then
    redis.call('UNLINK', duty)
  end
else
  local mine = owner[1] == control.instance
  local ends_at = tonumber(owner[2] or '') or 0 -- a damaged duty is over
  local free = not owner[1] or ends_at <= now
  if not mine and not free then
    free = true
    for _, name in ipairs(control.living) do
      free = free and name ~= owner[1]
    end
  end
  if mine or free then
    holds = 1
    if not mine or owner[3] ~= control.inc or ends_at < now + control.hold / 2 then
      local ends = int_text(now + control.hold)
      redis.call('HSET', duty, 'owner', control.instance, 'inc', control.inc, 'until', ends)
      redis.call('PEXPIRE', duty, int_text(control.hold))
    end
  end
end
local epoch = redis.call('HGET', meta, 'epoch') or '0'
return {'ok', untilms, int_text(now), holds, found, epoch}
