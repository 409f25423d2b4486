#!lua
-- defer_push: whether a push about a question goes out to a person now, or in the bundle that tells of many.
--
-- KEYS  1 pushes (of the last while)   2 held (pushes that wait for a bundle)   3 due
-- ARGV  1 control, JSON: action, attempt, row (member of the bundle in the due set), most (pushes in a window),
--         window (ms), ends (ms, when the question does, text), keep (ms)
-- USES  server_ms int_text
-- RETURNS  "" (it goes out now) | time of the bundle that it waits for, ms
-- NEVER  counts a question twice in a window. Lets out more than most in a window, or twice as many with what would end
--        before its bundle. Leaves what is held without a row.

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
-- A bundle whose time has come is being sent: it may have been read already.
local at = open > now and open or now + control.window
-- Who may say when a question ends must not flood by it: what ends soon goes out while there is room for it, too.
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
