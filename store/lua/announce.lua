#!lua flags=allow-oom
-- announce: announces that an instance is alive, and returns other recently announced ones.
--
-- KEYS  1 instances (by the time of the last announcement)
-- ARGV  1 control, JSON: instance, forget (ms)
-- USES  server_ms int_text
-- RETURNS  name silent name silent …: for how many ms each has been silent; those silent for longer than forget are
--          removed from the list
-- NEVER  records an announcement later than it was made.

local now = server_ms()
redis.call('ZADD', instances, int_text(now), control.instance)
local living = {}
local seen = redis.call('ZRANGE', instances, 0, -1, 'WITHSCORES')
for n = 1, #seen, 2 do
  local silent = now - tonumber(seen[n + 1])
  if silent > control.forget then
    redis.call('ZREM', instances, seen[n])
  else
    living[#living + 1] = seen[n]
    living[#living + 1] = int_text(silent)
  end
end
return living
