#!lua flags=allow-oom
-- settle_link: a fact about a device link has been told; what came up meanwhile is owed after the window.
--
-- KEYS  1 channel record   2 due
-- ARGV  1 control, JSON: channel, kind, told (count that the fact stands for in all, text), before (the same of the
--         fact before, as it was read, text), bytes (of the payloads in it), token (claim of the row), window (ms)
-- RETURNS  rest | settled
-- NEVER  drops a row that was claimed again by somebody else, or payloads that are in no fact: a handler that was
--        overtaken finds another count of what was told than it has read.

local control = cjson.decode(ARGV[1])
local record, kind = KEYS[1], control.kind
local row = 'link:' .. control.channel .. ':' .. kind
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

local total = tonumber(redis.call('HGET', record, 'n:' .. kind) or '0')
local told = redis.call('HGET', record, 't:' .. kind) or '0'
if total > 0 and told == control.before then
  local owed = redis.call('HGET', record, 'o:' .. kind) or ''
  redis.call('HSET', record, 't:' .. kind, control.told, 'w:' .. kind, string.format('%.0f', now),
    'o:' .. kind, string.sub(owed, control.bytes + 1))
end
if redis.call('ZSCORE', KEYS[2], row) ~= control.token then
  return 'rest'
end
if total > tonumber(control.told) then
  redis.call('ZADD', KEYS[2], string.format('%.0f', now + control.window), row)
  return 'rest'
end
redis.call('ZREM', KEYS[2], row)
return 'settled'
