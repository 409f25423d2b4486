#!lua
-- note_upload: notes content that an agent uploads, and schedules its deletion.
--
-- KEYS  1 uploads (of the agent)   2 due
-- ARGV  1 control, JSON: row (member of the due set), sha256, size (bytes), type (media type), keep (ms),
--         forget (lifetime of all notes, ms), room (maximum bytes of all uploads), most (maximum number of uploads)
-- USES  server_ms int_text
-- RETURNS  noted | full
-- NEVER  exceeds the limits, or moves a row that is claimed.

local now = server_ms()

local bytes, count = control.size, 1
local held = redis.call('HGETALL', uploads)
for n = 1, #held, 2 do
  if held[n] ~= control.sha256 then
    bytes = bytes + tonumber(string.match(held[n + 1], '^%d+ (%d+) '))
    count = count + 1
  end
end
if bytes > control.room or count > control.most then
  return 'full'
end
local note = string.format('%.0f %.0f %s', now, control.size, control.type)
redis.call('HSET', uploads, control.sha256, note)
redis.call('PEXPIRE', uploads, control.forget)
redis.call('ZADD', due, 'NX', int_text(now + control.keep), control.row)
return 'noted'
