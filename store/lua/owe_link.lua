#!lua flags=allow-oom
-- owe_link: notes pending facts about device links; several of one kind within a window become one.
--
-- KEYS  1 due   2.. channel records, one for each row; last: own set that the channels leave, when they leave one
-- ARGV  1 control, JSON: window (ms), keep (lifetime of a record, ms), leaves (whether there is an own set),
--         rows of channel, kind, wait (ms until the first of a kind is delivered), most (payloads that are listed,
--         0: only that of the newest connection counts), gen (text: which connection; false: its instance has died)
--       2.. payload bytes, without a line feed, one for each row
-- USES  server_ms int_text
-- RETURNS  owed | moved (its instance has died, and the device is connected elsewhere already) | gone (the channel had
--          no hello since it was deleted), one for each row
-- NEVER  writes a fact: the handler of the row does, when the window of the fact before is over. Creates a record.

local own = control.leaves and KEYS[#KEYS]
local now = server_ms()

local function note(record, payload, channel, kind, wait, most, gen)
  local newest = redis.call('HGET', record, 'gen')
  if own then
    local field = 'c:' .. channel
    local entered = redis.call('HGET', own, field)
    if not gen or entered == gen then
      redis.call('HDEL', own, field)
    end
    if not gen and entered ~= newest then
      return 'moved'
    end
  end
  if redis.call('HEXISTS', record, 's') == 0 then
    return 'gone'
  end
  if kind == 'disconnected' and (not gen or gen == newest) then
    redis.call('HSET', record, 'live', '0')
  end
  redis.call('HINCRBY', record, 'n:' .. kind, 1)
  if most == 0 then
    -- A report of a connection may arrive after that of a newer one of the device, also from another instance.
    local noted_gen = tonumber(redis.call('HGET', record, 'g:' .. kind) or '0')
    if not gen or tonumber(gen) >= noted_gen then
      redis.call('HSET', record, 'o:' .. kind, payload, 'g:' .. kind, gen or '0')
    end
  else
    local listed = redis.call('HGET', record, 'o:' .. kind) or ''
    local _, count = string.gsub(listed, '\n', '')
    if count < most then
      redis.call('HSET', record, 'o:' .. kind, listed .. payload .. '\n')
    end
  end
  redis.call('PEXPIRE', record, control.keep)
  local fact_at = tonumber(redis.call('HGET', record, 'w:' .. kind) or '0')
  local at = math.max(now + wait, fact_at + control.window)
  redis.call('ZADD', due, 'NX', int_text(at), 'link:' .. channel .. ':' .. kind)
  return 'owed'
end

local answer = {}
for place, row in ipairs(control.rows) do
  answer[place] = note(KEYS[place + 1], ARGV[place + 1], unpack(row))
end
return answer
