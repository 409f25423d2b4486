#!lua flags=allow-oom
-- hasten_due: makes rows due earlier.
--
-- KEYS  1 due
-- ARGV  1 control, JSON: members, after (for each, ms from now)
-- USES  server_ms int_text
-- RETURNS  how many rows are due earlier now
-- NEVER  creates a row, or makes one due later than before.

local now, moved = server_ms(), 0
for n, member in ipairs(control.members) do
  local at, wanted = redis.call('ZSCORE', due, member), now + control.after[n]
  if at and tonumber(at) > wanted then
    redis.call('ZADD', due, int_text(wanted), member)
    moved = moved + 1
  end
end
return moved
