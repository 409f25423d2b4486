#!lua flags=allow-oom
-- extend_claim: keeps a claimed row hidden for longer, for work that takes more than the visibility time.
--
-- KEYS  1 due
-- ARGV  1 control, JSON: member, token (score with which it was claimed, text), hold (ms from now)
-- USES  server_ms int_text
-- RETURNS  the new token | unclaimed
-- NEVER  restores a row that was settled, or takes one that another instance has claimed since.

if redis.call('ZSCORE', due, control.member) ~= control.token then
  return 'unclaimed'
end
local now = server_ms()
local token = int_text(now + control.hold)
redis.call('ZADD', due, token, control.member)
return token
