#!lua
-- presence: stores the presence of one device of a principal, for a minute, or removes it.
--
-- KEYS  1 presences (of the principal)   2 hints (of the principal's links)
-- ARGV  1 control, JSON: channel, gen (text), keep (ms), gone true: the presence is removed
--       2 the presence, bytes; empty if it is removed
-- USES  server_ms int_text
-- RETURNS  ok | stale (a newer connection of the channel has stored one)
-- NEVER  keeps an expired presence.

local now = server_ms()

local before
local rows = redis.call('HGETALL', presences)
for place = 1, #rows, 2 do
  local ends, generation, word = string.match(rows[place + 1], '^(%d+)|(%d+)|(.*)$')
  if tonumber(ends) <= now then
    redis.call('HDEL', presences, rows[place])
  elseif rows[place] == control.channel then
    if tonumber(generation) > tonumber(control.gen) then
      return 'stale'
    end
    before = word
  end
end
if control.gone then
  redis.call('HDEL', presences, control.channel)
else
  redis.call('HSET', presences, control.channel,
    int_text(now + control.keep) .. '|' .. control.gen .. '|' .. ARGV[2])
  redis.call('PEXPIRE', presences, control.keep)
end
if before ~= (not control.gone and ARGV[2] or nil) then
  redis.call('SPUBLISH', hints, 'p')
end
return 'ok'
