#!lua flags=allow-oom
-- register_agent: records that an agent is served over a link, and removes older links.
--
-- KEYS  1 agent (its record)   2 hints (of the agent)
-- ARGV  1 control, JSON: link, instance, hold (ms for which the link is valid without renewal), keep (ms),
--         pool (whether older links stay)
--       2 card bytes
-- USES  server_ms int_text
-- RETURNS  the generation of the registration (text)
-- NEVER  decides which agent may register.

local generation = int_text(redis.call('HINCRBY', agent, 'gen', 1))
local now = server_ms()
local all = redis.call('HGETALL', agent)
for at = 1, #all, 2 do
  if string.sub(all[at], 1, 2) == 'l:' then
    local till = tonumber(string.match(all[at + 1], ' (%d+)$') or '0')
    if not control.pool or till < now then
      redis.call('HDEL', agent, all[at])
    end
  end
end
redis.call('HSET', agent, 'card', ARGV[2], 'l:' .. control.link,
  control.instance .. ' ' .. generation .. ' ' .. int_text(now + control.hold))
redis.call('PEXPIRE', agent, control.keep)
redis.call('SPUBLISH', hints,
  'r ' .. control.link .. ' ' .. generation .. ' ' .. (control.pool and '1' or '0'))
return generation
