#!lua
-- note_upload: notes content that an agent uploads, and that it is to be forgotten.
--
-- KEYS  1 uploads of the agent   2 due
-- ARGV  1 control, JSON: row (member of the due set), sha256, size (bytes), type (media type), keep (ms), forget (lifetime of
--         all notes, ms),
--         room (bytes that all of them may have), most (how many there may be)
-- RETURNS  noted | full
-- NEVER  takes room that is not there, or moves a row that is claimed.

local control = cjson.decode(ARGV[1])
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

local bytes, count = control.size, 1
local held = redis.call('HGETALL', KEYS[1])
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
redis.call('HSET', KEYS[1], control.sha256, note)
redis.call('PEXPIRE', KEYS[1], control.forget)
redis.call('ZADD', KEYS[2], 'NX', string.format('%.0f', now + control.keep), control.row)
return 'noted'
