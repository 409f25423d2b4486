#!lua
-- mute: mutes an agent for a person's pushes until a time, or ends the mute.
--
-- KEYS  1 mutes (of the person)
-- ARGV  1 control, JSON: peer, keep (ms from now; 0: ends the mute), most (muted agents at most)
-- USES  server_ms int_text
-- RETURNS  when it ends, ms | ""
-- NEVER  keeps expired mutes, or more than most: those that end first are removed.

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
