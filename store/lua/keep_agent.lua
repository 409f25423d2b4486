#!lua flags=allow-oom
-- keep_agent: renews a link that serves an agent.
--
-- KEYS  1 agent (its record)
-- ARGV  1 control, JSON: link, instance, gen (text), hold (ms), keep (ms)
-- USES  server_ms int_text
-- RETURNS  1, or 0 if the link has lost the name
-- NEVER  restores a link that a newer one has replaced.

local field = 'l:' .. control.link
if not redis.call('HGET', agent, field) then
  return 0
end
local now = server_ms()
redis.call('HSET', agent, field,
  control.instance .. ' ' .. control.gen .. ' ' .. int_text(now + control.hold))
redis.call('PEXPIRE', agent, control.keep)
return 1
