#!lua
-- mute: an agent that a person wants no pushes for, until a time, or its end.
--
-- KEYS  1 mutes (of the person)
-- ARGV  1 control, JSON: peer, keep (ms from now; 0: it is muted no more), most (agents that are kept)
-- USES  server_ms int_text
-- RETURNS  when it ends, ms | ""
-- NEVER  keeps what has run out, or more than the most: those that end first go.

local now = server_ms()
redis.call('ZREMRANGEBYSCORE', mutes, '-inf', int_text(now))
if control.keep == 0 then
  redis.call('ZREM', mutes, control.peer)
  return ''
end
local until_text = int_text(now + control.keep)
redis.call('ZADD', mutes, until_text, control.peer)
redis.call('ZREMRANGEBYRANK', mutes, 0, -1 - control.most)
local last = redis.call('ZRANGE', mutes, -1, -1, 'WITHSCORES')[2]
redis.call('PEXPIRE', mutes, int_text(tonumber(last) - now))
return until_text
