#!lua flags=allow-oom
-- hello: writes the records of device links of one principal and counts the generation of each up, from the time of
-- the first one on. Says how many questions the principal has open in the same moment.
--
-- KEYS  1 inbox head of the principal   2 hint channel of the principal's links   3 its newest links
--       4 its open questions   5.. channel records
--       last two: due, own set of the driving instance, when there is one
-- ARGV  1 control, JSON: channels (ids), mint (epoch for an inbox that has to be made), keep (ms),
--         driver false or [instance, inc], links (how many of the newest are remembered)
--       2.. record bytes, one for each channel
-- RETURNS  ok number-of-open-questions gen .. | fenced
-- NEVER  adds an entry to the inbox, or writes one record of several.

local control = cjson.decode(ARGV[1])
local own, rest = control.driver and KEYS[#KEYS], nil
if own then
  local set = redis.call('HMGET', own, 'inc', 'gone', 'rest')
  if set[1] ~= control.driver[2] or set[2] then
    return {'fenced'}
  end
  rest = set[3]
end
local now = redis.call('TIME')
if rest then
  -- The lease rested: from now on somebody waits for its end.
  local ends = string.format('%.0f', tonumber(now[1]) * 1000 + math.floor(tonumber(now[2]) / 1000) + tonumber(rest))
  redis.call('HDEL', own, 'rest')
  redis.call('HSET', own, 'until', ends)
  redis.call('ZADD', KEYS[#KEYS - 1], ends, 'own:' .. control.driver[1])
end
now = string.format('%.0f', tonumber(now[1]) * 1000000 + tonumber(now[2]))
local instance = control.driver and control.driver[1] or ''
local answer, news = {'ok', redis.call('HLEN', KEYS[4])}, {}
for place, channel in ipairs(control.channels) do
  local record = KEYS[place + 4]
  local generation = redis.call('HINCRBY', record, 'gen', 1)
  if generation == 1 then
    -- A store that has forgotten the channel must not give a number again that an open connection still has.
    generation = tonumber(now)
    redis.call('HSET', record, 'gen', now)
  end
  local text = string.format('%.0f', generation)
  redis.call('HSET', record, 's', ARGV[place + 1], 'live', '1', 'instance', instance)
  redis.call('PEXPIRE', record, control.keep)
  redis.call('ZADD', KEYS[3], now, channel)
  if own then
    redis.call('HSET', own, 'c:' .. channel, text)
  end
  answer[place + 2] = text
  news[place] = 'g ' .. channel .. ' ' .. text
end
redis.call('ZREMRANGEBYRANK', KEYS[3], 0, -1 - control.links)
redis.call('PEXPIRE', KEYS[3], control.keep)
if not redis.call('HGET', KEYS[1], 'epoch') then
  redis.call('HSET', KEYS[1], 'epoch', control.mint, 'seq', '0', 'first', '1', 'bytes', '0',
    'chain', string.sub(redis.sha1hex(control.mint), 1, 8))
end
redis.call('SPUBLISH', KEYS[2], table.concat(news, '\n'))
return answer
