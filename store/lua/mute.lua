#!lua
-- mute: an agent that a person wants no pushes for, until a time, or its end.
--
-- KEYS  1 muted agents of the person
-- ARGV  1 control, JSON: peer, keep (ms from now; 0: it is muted no more), most (agents that are kept)
-- RETURNS  when it ends, ms | ""
-- NEVER  keeps what has run out, or more than the most: those that end first go.

local control = cjson.decode(ARGV[1])
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now))
if control.keep == 0 then
  redis.call('ZREM', KEYS[1], control.peer)
  return ''
end
local until_text = string.format('%.0f', now + control.keep)
redis.call('ZADD', KEYS[1], until_text, control.peer)
redis.call('ZREMRANGEBYRANK', KEYS[1], 0, -1 - control.most)
local last = redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')[2]
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', tonumber(last) - now))
return until_text
