#!lua flags=allow-oom
-- bump_epoch: gives a shard a new epoch after acknowledged writes were lost; the first of several calls wins.
--
-- KEYS  1 meta (of the shard)   2 hints (of the shard)
-- ARGV  1 control, JSON: expected (text)
-- USES  server_ms int_text
-- RETURNS  the current epoch, text
-- NEVER  decreases the epoch, even if a bump itself was lost: it is at least the server's milliseconds.

local current = redis.call('HGET', meta, 'epoch') or '0'
if current ~= control.expected then
  return current
end
local now = server_ms()
local fresh = int_text(math.max(tonumber(current) + 1, now))
redis.call('HSET', meta, 'epoch', fresh)
redis.call('SPUBLISH', hints, 's ' .. fresh)
return fresh
