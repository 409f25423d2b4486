#!lua flags=allow-oom
-- hello: writes the records of device links of one principal and increments the generation of each, starting from the
-- time of the first one. Returns how many approvals the principal has open at the same moment.
--
-- KEYS  1 head (of the principal's inbox)   2 hints (of the principal's links)   3 links (the newest ones)
--       4 questions (open ones of the principal)
--       5.. channel records; last two: due, own set of the driving instance, when there is one
-- ARGV  1 control, JSON: channels (ids), mint (epoch for an inbox that has to be created), keep (ms),
--         driver false or [instance, inc], links (how many of the newest are kept)
--       2.. record bytes, one for each channel
-- USES  server_ms int_text wake_lease
-- RETURNS  ok number-of-open-questions gen .. | fenced
-- NEVER  adds an entry to the inbox, or writes only some of several records.

local own, rest = control.driver and KEYS[#KEYS], nil
if own then
  local set = redis.call('HMGET', own, 'inc', 'gone', 'rest')
  if set[1] ~= control.driver[2] or set[2] then
    return {'fenced'}
  end
  rest = set[3]
end
wake_lease(own, KEYS[#KEYS - 1], rest, server_ms())
local time = redis.call('TIME')
local now = int_text(tonumber(time[1]) * 1000000 + tonumber(time[2]))
local instance = control.driver and control.driver[1] or ''
local answer, news = {'ok', redis.call('HLEN', questions)}, {}
for place, channel in ipairs(control.channels) do
  local record = KEYS[place + 4]
  local generation = redis.call('HINCRBY', record, 'gen', 1)
  if generation == 1 then
    -- A store that has lost the channel must not assign a number again that an open connection still has.
    generation = tonumber(now)
    redis.call('HSET', record, 'gen', now)
  end
  local text = int_text(generation)
  redis.call('HSET', record, 's', ARGV[place + 1], 'live', '1', 'instance', instance)
  redis.call('PEXPIRE', record, control.keep)
  redis.call('ZADD', links, now, channel)
  if own then
    redis.call('HSET', own, 'c:' .. channel, text)
  end
  answer[place + 2] = text
  news[place] = 'g ' .. channel .. ' ' .. text
end
redis.call('ZREMRANGEBYRANK', links, 0, -1 - control.links)
redis.call('PEXPIRE', links, control.keep)
if not redis.call('HGET', head, 'epoch') then
  redis.call('HSET', head, 'epoch', control.mint, 'seq', '0', 'first', '1', 'bytes', '0',
    'chain', string.sub(redis.sha1hex(control.mint), 1, 8))
end
redis.call('SPUBLISH', hints, table.concat(news, '\n'))
return answer
