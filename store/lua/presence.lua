#!lua
-- presence: the word of one device of a principal, for a minute, or its end.
--
-- KEYS  1 presences of the principal   2 hint channel of the principal's links
-- ARGV  1 control, JSON: channel, gen (text), keep (ms), gone true: the word goes
--       2 the word, bytes; empty where it goes
-- RETURNS  ok | stale (a newer connection of the channel has spoken)
-- NEVER  leaves a word in place that has run out.

local control = cjson.decode(ARGV[1])
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

local before
local rows = redis.call('HGETALL', KEYS[1])
for place = 1, #rows, 2 do
  local ends, generation, word = string.match(rows[place + 1], '^(%d+)|(%d+)|(.*)$')
  if tonumber(ends) <= now then
    redis.call('HDEL', KEYS[1], rows[place])
  elseif rows[place] == control.channel then
    if tonumber(generation) > tonumber(control.gen) then
      return 'stale'
    end
    before = word
  end
end
if control.gone then
  redis.call('HDEL', KEYS[1], control.channel)
else
  redis.call('HSET', KEYS[1], control.channel,
    string.format('%.0f', now + control.keep) .. '|' .. control.gen .. '|' .. ARGV[2])
  redis.call('PEXPIRE', KEYS[1], control.keep)
end
if before ~= (not control.gone and ARGV[2] or nil) then
  redis.call('SPUBLISH', KEYS[2], 'p')
end
return 'ok'
