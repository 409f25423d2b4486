#!lua
-- hold_push: whether a push about a question goes out to a person now, or in the bundle that tells of many.
--
-- KEYS  1 pushes of the last while   2 what is held   3 due
-- ARGV  1 control, JSON: action, attempt, row (member of the bundle in the due set), most (pushes in a window),
--         window (ms), ends (ms, when the question does, text), keep (ms)
-- RETURNS  "" (it goes out now) | time of the bundle that it waits for, ms
-- NEVER  counts a question twice in a window. Lets out more than most in a window, or twice as many with what would end
--        before its bundle. Leaves what is held without a row.

local control = cjson.decode(ARGV[1])
local held = control.action .. ' ' .. control.attempt
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

local waits = redis.call('ZSCORE', KEYS[2], held)
if waits then
  return waits
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now - control.window))
if redis.call('ZSCORE', KEYS[1], control.action) then
  return ''
end
local open = tonumber(redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')[2] or '0')
local sent = redis.call('ZCARD', KEYS[1])
local crowded = open > 0 or sent >= control.most
-- A bundle whose time has come is being sent: it may have been read already.
local at = open > now and open or now + control.window
-- Who may say when a question ends must not flood by it: what ends soon goes out while there is room for it, too.
if not crowded or (tonumber(control.ends) <= at and sent < 2 * control.most) then
  redis.call('ZADD', KEYS[1], string.format('%.0f', now), control.action)
  redis.call('PEXPIRE', KEYS[1], control.window)
  return ''
end
local at_text = string.format('%.0f', at)
redis.call('ZADD', KEYS[2], at_text, held)
redis.call('PEXPIRE', KEYS[2], control.keep)
redis.call('ZADD', KEYS[3], 'NX', at_text, control.row)
return at_text
