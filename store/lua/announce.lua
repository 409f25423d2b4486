#!lua flags=allow-oom
-- announce: an instance says that it lives, and learns who else has said so lately.
--
-- KEYS  1 instances, by when each spoke last
-- ARGV  1 control, JSON: instance, forget (ms)
-- RETURNS  name silent name silent …: for how many ms each has been silent; those that have for longer than forget are
--          taken off the list
-- NEVER  says of an instance that it spoke later than it did.

local control = cjson.decode(ARGV[1])
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
redis.call('ZADD', KEYS[1], string.format('%.0f', now), control.instance)
local told = {}
local seen = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
for n = 1, #seen, 2 do
  local silent = now - tonumber(seen[n + 1])
  if silent > control.forget then
    redis.call('ZREM', KEYS[1], seen[n])
  else
    told[#told + 1] = seen[n]
    told[#told + 1] = string.format('%.0f', silent)
  end
end
return told
