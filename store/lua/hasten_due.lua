#!lua flags=allow-oom
-- hasten_due: has rows come earlier that are owed for later.
--
-- KEYS  1 due
-- ARGV  1 control, JSON: members, after (for each, ms from now)
-- USES  server_ms int_text
-- RETURNS  how many come earlier now
-- NEVER  sets a row that is not there; has one come later than it was to.

local now, moved = server_ms(), 0
for n, member in ipairs(control.members) do
  local at, wanted = redis.call('ZSCORE', due, member), now + control.after[n]
  if at and tonumber(at) > wanted then
    redis.call('ZADD', due, int_text(wanted), member)
    moved = moved + 1
  end
end
return moved
