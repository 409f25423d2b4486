#!lua flags=allow-oom
-- find_ended: which of these sessions have had no event for a while.
--
-- KEYS  1.. heads
-- ARGV  1 control, JSON: before (RFC 3339, as events have it)
-- RETURNS  place, time of the last event and bytes of each
-- NEVER  writes.

local ended = {}
for place, key in ipairs(KEYS) do
  local found = redis.call('HMGET', key, 'at', 'bytes')
  if found[1] and found[1] < control.before then
    ended[#ended + 1] = { place, found[1], found[2] or '0' }
  end
end
return ended
