#!lua
-- slots: sets how many concurrency slots one instance holds of a shared limit, and draws rate tokens.
--
-- KEYS  1 limit
-- ARGV  1 control, JSON: instance, slots (wanted in all; 0 gives all back), limit (of all instances; 0 = none),
--         tokens (wanted now), rate (tokens a second for all instances), hold (ms that a block lives)
-- RETURNS  {slots granted, tokens granted, now}
-- NEVER  grants more than the limit over all living blocks; an expired block is dropped first.

local control = cjson.decode(ARGV[1])
local time = redis.call('TIME')
local second = time[1]
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

local taken = 0
local fields = redis.call('HGETALL', KEYS[1])
local window, left = '', 0
for n = 1, #fields, 2 do
  local name, value = fields[n], fields[n + 1]
  local held, expiry = string.match(value, '^(%d+)|(%d+)$')
  if name == 'rate' then
    window, left = expiry, tonumber(held)
  elseif tonumber(expiry) <= now then
    redis.call('HDEL', KEYS[1], name)
  elseif name ~= 's:' .. control.instance then
    taken = taken + tonumber(held)
  end
end

local granted = math.max(0, math.min(control.slots, control.limit - taken))
if granted > 0 then
  redis.call('HSET', KEYS[1], 's:' .. control.instance,
    string.format('%.0f|%.0f', granted, now + control.hold))
else
  redis.call('HDEL', KEYS[1], 's:' .. control.instance)
end

local tokens = 0
if control.tokens > 0 then
  if window ~= second then
    left = control.rate
  end
  tokens = math.max(0, math.min(control.tokens, left))
  redis.call('HSET', KEYS[1], 'rate', string.format('%.0f|%s', left - tokens, second))
end
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', control.hold))
return {granted, tokens, string.format('%.0f', now)}
