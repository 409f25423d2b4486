#!lua flags=allow-oom
-- settle_link: a fact about a device link has been told; what came up meanwhile is owed after the window.
--
-- KEYS  1 record (of the channel)   2 due
-- ARGV  1 control, JSON: channel, kind, told (count that the fact stands for in all, text), before (the same of the
--         fact before, as it was read, text), bytes (of the payloads in it), token (claim of the row), window (ms)
-- USES  server_ms int_text
-- RETURNS  rest | settled
-- NEVER  drops a row that was claimed again by somebody else, or payloads that are in no fact: a handler that was
--        overtaken finds another count of what was told than it has read.

local record, kind = record, control.kind
local row = 'link:' .. control.channel .. ':' .. kind
local now = server_ms()

local total = tonumber(redis.call('HGET', record, 'n:' .. kind) or '0')
local told = redis.call('HGET', record, 't:' .. kind) or '0'
if total > 0 and told == control.before then
  local owed = redis.call('HGET', record, 'o:' .. kind) or ''
  redis.call('HSET', record, 't:' .. kind, control.told, 'w:' .. kind, int_text(now),
    'o:' .. kind, string.sub(owed, control.bytes + 1))
end
if redis.call('ZSCORE', due, row) ~= control.token then
  return 'rest'
end
if total > tonumber(control.told) then
  redis.call('ZADD', due, int_text(now + control.window), row)
  return 'rest'
end
redis.call('ZREM', due, row)
return 'settled'
