#!lua flags=allow-oom
-- hello: writes the record of a device link and counts its generation up, from the time of the first one on.
--
-- KEYS  1 channel record   2 inbox head of the principal   3 hint channel of the principal's links
--       4 own set of the driving instance, when there is one
-- ARGV  1 control, JSON: channel, mint (epoch for an inbox that has to be made), keep (ms),
--         driver false or [instance, inc]
--       2 record bytes
-- RETURNS  ok gen | fenced
-- NEVER  adds an entry to the inbox.

local control = cjson.decode(ARGV[1])
if control.driver then
  local set = redis.call('HMGET', KEYS[4], 'inc', 'gone')
  if set[1] ~= control.driver[2] or set[2] then
    return {'fenced'}
  end
end
local generation = redis.call('HINCRBY', KEYS[1], 'gen', 1)
if generation == 1 then
  -- A store that has forgotten the channel must not give a number again that an open connection still has.
  local time = redis.call('TIME')
  generation = tonumber(time[1]) * 1000000 + tonumber(time[2])
  redis.call('HSET', KEYS[1], 'gen', string.format('%.0f', generation))
end
redis.call('HSET', KEYS[1], 's', ARGV[2], 'live', '1',
  'instance', control.driver and control.driver[1] or '')
redis.call('PEXPIRE', KEYS[1], control.keep)
if control.driver then
  redis.call('HSET', KEYS[4], 'c:' .. control.channel, string.format('%.0f', generation))
end
if not redis.call('HGET', KEYS[2], 'epoch') then
  redis.call('HSET', KEYS[2], 'epoch', control.mint, 'seq', '0', 'first', '1', 'bytes', '0',
    'chain', string.sub(redis.sha1hex(control.mint), 1, 8))
end
redis.call('SPUBLISH', KEYS[3], 'g ' .. control.channel .. ' ' .. string.format('%.0f', generation))
return {'ok', string.format('%.0f', generation)}
