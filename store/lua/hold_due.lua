#!lua flags=allow-oom
-- hold_due: keeps a claimed row hidden for longer, for work that takes more than the visibility time.
--
-- KEYS  1 due
-- ARGV  1 control, JSON: member, token (score with which it was claimed, text), hold (ms from now)
-- RETURNS  the new token | unclaimed
-- NEVER  brings back a row that was settled, or takes one that somebody else has claimed since.

local control = cjson.decode(ARGV[1])
if redis.call('ZSCORE', KEYS[1], control.member) ~= control.token then
  return 'unclaimed'
end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local token = string.format('%.0f', now + control.hold)
redis.call('ZADD', KEYS[1], token, control.member)
return token
