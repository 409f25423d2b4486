#!lua flags=allow-oom
-- bump_epoch: gives a shard a new epoch after acknowledged writes were lost; the first of several wins.
--
-- KEYS  1 shard meta   2 hint channel of the shard
-- ARGV  1 control, JSON: expected (text)
-- RETURNS  the epoch that holds now, text
-- NEVER  lets the epoch fall, also when a bump itself was lost: it is at least the server's milliseconds.

local control = cjson.decode(ARGV[1])
local current = redis.call('HGET', KEYS[1], 'epoch') or '0'
if current ~= control.expected then
  return current
end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local fresh = string.format('%.0f', math.max(tonumber(current) + 1, now))
redis.call('HSET', KEYS[1], 'epoch', fresh)
redis.call('SPUBLISH', KEYS[2], 's ' .. fresh)
return fresh
