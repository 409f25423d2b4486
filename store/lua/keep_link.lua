#!lua flags=allow-oom
-- keep_link: says that a device link is still open, and which of its connections is the newest.
--
-- KEYS  1 channel record   2 own set of the driving instance, when it holds a lease   3 due, beside it
-- ARGV  1 control, JSON: channel, gen (text), keep (ms), inc (text, of the driver), instance
-- RETURNS  the newest generation (text); the record is touched only when that is ours
-- NEVER  makes a record.

local control = cjson.decode(ARGV[1])
local newest = redis.call('HGET', KEYS[1], 'gen') or '0'
if newest ~= control.gen then
  return newest
end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
redis.call('HSET', KEYS[1], 'live', '1', 'instance', control.instance, 'seen', string.format('%.0f', now))
redis.call('PEXPIRE', KEYS[1], control.keep)
if KEYS[2] then
  local set = redis.call('HMGET', KEYS[2], 'inc', 'gone', 'rest')
  if set[1] == control.inc and not set[2] then
    redis.call('HSET', KEYS[2], 'c:' .. control.channel, control.gen)
    if set[3] then
      -- The lease rested: from now on somebody waits for its end.
      local ends = string.format('%.0f', now + tonumber(set[3]))
      redis.call('HDEL', KEYS[2], 'rest')
      redis.call('HSET', KEYS[2], 'until', ends)
      redis.call('ZADD', KEYS[3], ends, 'own:' .. control.instance)
    end
  end
end
return newest
