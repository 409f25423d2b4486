#!lua
-- defer_push: decides whether a push about an approval is sent to a person now, or in a bundle with others.
--
-- KEYS  1 pushes (of the last while)   2 held (pushes that wait for a bundle)   3 due
-- ARGV  1 control, JSON: action, attempt, row (member of the bundle in the due set), most (pushes in a window),
--         window (ms), ends (ms, when the question does, text), keep (ms)
-- USES  server_ms int_text
-- RETURNS  "" (it is sent now) | time of the bundle that it waits for, ms
-- NEVER  counts an approval twice in a window. Allows more than most in a window, or twice as many with those that end
--        before their bundle. Leaves held pushes without a row.

local entry = control.action .. ' ' .. control.attempt
local now = server_ms()

local waits = redis.call('ZSCORE', held, entry)
if waits then
  return waits
end
redis.call('ZREMRANGEBYSCORE', pushes, '-inf', int_text(now - control.window))
if redis.call('ZSCORE', pushes, control.action) then
  return ''
end
local open = tonumber(redis.call('ZRANGE', held, 0, 0, 'WITHSCORES')[2] or '0')
local sent = redis.call('ZCARD', pushes)
local crowded = open > 0 or sent >= control.most
-- A bundle that is due is being sent: it may have been read already.
local at = open > now and open or now + control.window
-- An agent sets the end of an approval and must not flood with it: an early end is sent only within twice the limit.
if not crowded or (tonumber(control.ends) <= at and sent < 2 * control.most) then
  redis.call('ZADD', pushes, int_text(now), control.action)
  redis.call('PEXPIRE', pushes, control.window)
  return ''
end
local at_text = int_text(at)
redis.call('ZADD', held, at_text, entry)
redis.call('PEXPIRE', held, control.keep)
redis.call('ZADD', due, 'NX', at_text, control.row)
return at_text
