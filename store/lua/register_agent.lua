#!lua flags=allow-oom
-- register_agent: notes that an agent is served over a link, and that older links are not any more.
--
-- KEYS  1 agent record   2 hint channel of the agent
-- ARGV  1 control, JSON: link, instance, hold (ms for which the link counts without a further word), keep (ms),
--         pool (whether older links stay)
--       2 card bytes
-- RETURNS  the generation of the registration (text)
-- NEVER  judges who may register.

local control = cjson.decode(ARGV[1])
local generation = string.format('%.0f', redis.call('HINCRBY', KEYS[1], 'gen', 1))
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local all = redis.call('HGETALL', KEYS[1])
for at = 1, #all, 2 do
  if string.sub(all[at], 1, 2) == 'l:' then
    local till = tonumber(string.match(all[at + 1], ' (%d+)$') or '0')
    if not control.pool or till < now then
      redis.call('HDEL', KEYS[1], all[at])
    end
  end
end
redis.call('HSET', KEYS[1], 'card', ARGV[2], 'l:' .. control.link,
  control.instance .. ' ' .. generation .. ' ' .. string.format('%.0f', now + control.hold))
redis.call('PEXPIRE', KEYS[1], control.keep)
redis.call('SPUBLISH', KEYS[2],
  'r ' .. control.link .. ' ' .. generation .. ' ' .. (control.pool and '1' or '0'))
return generation
