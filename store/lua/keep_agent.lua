#!lua flags=allow-oom
-- keep_agent: says that a link still serves an agent.
--
-- KEYS  1 agent record
-- ARGV  1 control, JSON: link, instance, gen (text), hold (ms), keep (ms)
-- RETURNS  1, or 0 when the link has lost the name
-- NEVER  brings back a link that a newer one has replaced.

local control = cjson.decode(ARGV[1])
local field = 'l:' .. control.link
if not redis.call('HGET', KEYS[1], field) then
  return 0
end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
redis.call('HSET', KEYS[1], field,
  control.instance .. ' ' .. control.gen .. ' ' .. string.format('%.0f', now + control.hold))
redis.call('PEXPIRE', KEYS[1], control.keep)
return 1
