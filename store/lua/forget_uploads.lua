#!lua flags=allow-oom
-- forget_uploads: removes the notes of deleted uploads of an agent; the rest is rescheduled.
--
-- KEYS  1 uploads (of the agent)   2 due
-- ARGV  1 control, JSON: row (member of the due set), token (claim of the row), gone (pairs of sha256 and note),
--         keep (ms that content is kept), again (ms until due content that still exists is checked again)
-- USES  server_ms int_text
-- RETURNS  rest | settled
-- NEVER  removes the note of content uploaded again meanwhile, or a row that another instance has claimed again.

local now = server_ms()

for _, pair in ipairs(control.gone) do
  if redis.call('HGET', uploads, pair[1]) == pair[2] then
    redis.call('HDEL', uploads, pair[1])
  end
end
if redis.call('ZSCORE', due, control.row) ~= control.token then
  return 'rest'
end
local first
local left = redis.call('HGETALL', uploads)
for n = 2, #left, 2 do
  local noted = tonumber(string.match(left[n], '^(%d+) '))
  first = math.min(first or noted, noted)
end
if not first then
  redis.call('ZREM', due, control.row)
  return 'settled'
end
local at = math.max(first + control.keep, now + control.again)
redis.call('ZADD', due, int_text(at), control.row)
return 'rest'
