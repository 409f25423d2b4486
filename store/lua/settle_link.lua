#!lua flags=allow-oom
-- settle_link: records that a fact about a device link was delivered; later ones follow after the window.
--
-- KEYS  1 record (of the channel)   2 due
-- ARGV  1 control, JSON: channel, kind, told (total count covered by the fact, text), before (the same of the fact
--         before, as it was read, text), bytes (of the payloads in it), token (claim of the row), window (ms)
-- USES  server_ms int_text
-- RETURNS  rest | settled
-- NEVER  drops a row that another instance has claimed again, or payloads that are in no fact: a handler that was
--        overtaken finds another delivered count than it has read.

local record, kind = record, control.kind
local row = 'link:' .. control.channel .. ':' .. kind
local now = server_ms()

local total = tonumber(redis.call('HGET', record, 'n:' .. kind) or '0')
local delivered = redis.call('HGET', record, 't:' .. kind) or '0'
if total > 0 and delivered == control.before then
  local pending = redis.call('HGET', record, 'o:' .. kind) or ''
  redis.call('HSET', record, 't:' .. kind, control.told, 'w:' .. kind, int_text(now),
    'o:' .. kind, string.sub(pending, control.bytes + 1))
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
