#!lua flags=allow-oom
-- owe_link: notes a fact that is owed about a device link; several of one kind within a window become one.
--
-- KEYS  1 channel record   2 due   3 own set that the channel stands in, when it leaves it
-- ARGV  1 control, JSON: channel, kind, window (ms), keep (lifetime of the record, ms), most (payloads that are
--         listed, 0: only the last one counts), gen (text: the connection that leaves; false: its instance has died)
--       2 payload bytes, without a line feed
-- RETURNS  owed | moved (its instance has died, and the device is connected elsewhere already)
-- NEVER  writes a fact: the handler of the row does, when the window of the fact before is over.

local control = cjson.decode(ARGV[1])
local record, kind = KEYS[1], control.kind
local newest = redis.call('HGET', record, 'gen')
if KEYS[3] then
  local field = 'c:' .. control.channel
  local entered = redis.call('HGET', KEYS[3], field)
  if not control.gen or entered == control.gen then
    redis.call('HDEL', KEYS[3], field)
  end
  if not control.gen and entered ~= newest then
    return 'moved'
  end
end
if kind == 'disconnected' and (not control.gen or control.gen == newest) then
  redis.call('HSET', record, 'live', '0')
end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

redis.call('HINCRBY', record, 'n:' .. kind, 1)
if control.most == 0 then
  redis.call('HSET', record, 'o:' .. kind, ARGV[2])
else
  local listed = redis.call('HGET', record, 'o:' .. kind) or ''
  local _, count = string.gsub(listed, '\n', '')
  if count < control.most then
    redis.call('HSET', record, 'o:' .. kind, listed .. ARGV[2] .. '\n')
  end
end
redis.call('PEXPIRE', record, control.keep)
local told = tonumber(redis.call('HGET', record, 'w:' .. kind) or '0')
local at = math.max(now, told + control.window)
redis.call('ZADD', KEYS[2], 'NX', string.format('%.0f', at), 'link:' .. control.channel .. ':' .. kind)
return 'owed'
