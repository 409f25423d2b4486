#!lua
-- advance_projection: applies rows of one source shard to views in one destination shard, then moves the mark.
--
-- KEYS  1 marks   2 shard meta of the destination   3 due   4.. keys of the rows, named by index
-- ARGV  1 control, JSON:
--         source       tag of the source shard
--         source_epoch its shard epoch, decimal text
--         feed         feed id of the rows, "<ms>-<n>"; "": rows made anew from the streams, beside the order of the
--                      feed: no mark is compared and none is moved
--         epoch        expected shard epoch of the destination, decimal text
--         known        mark that the destination was seen with before, "<epoch>.<ms>-<n>", or ""
--         index        list of [key or 0, member, score text, key that the member leaves or 0]: the later time wins;
--                      key 0: the member leaves only
--         inbox        list of {keys = {head, stream, open, targets, hints, order}, mint, events, pending};
--                      events as in append: [id, type, body, length, facade];
--                      pending: list of [action, index into ARGV of the view or 0 to remove, milliseconds as text,
--                      key of those that ended so or 0, milliseconds of the end as text]
--       2.. byte strings
-- RETURNS  {"ok", mark that holds} | {"epoch", current} | {"behind", mark found or ""}: nothing was applied, since the
--          mark is lower than the known one of the same epoch of the source: the destination has lost rows
-- NEVER  applies a feed id that is not above the stored mark, unless the source has a new epoch; ids are
--        compared as pairs of numbers. Adds an entry again that an inbox has, among its last 2048, of a row that is
--        repeated or made anew.

local REPEAT_WINDOW = 2048
local HINT_LIMIT = 8192
local control = cjson.decode(ARGV[1])

local function number_text(n)
  return string.format('%.0f', n)
end

local current = redis.call('HGET', KEYS[2], 'epoch') or '0'
if current ~= control.epoch then
  return {'epoch', current}
end
-- Whether one feed id is above another one.
local function is_above(one, other)
  local our_high, our_low = string.match(one, '^(%d+)-(%d+)$')
  local high, low = string.match(other, '^(%d+)-(%d+)$')
  our_high, high = tonumber(our_high), tonumber(high)
  return our_high > high or (our_high == high and tonumber(our_low) > tonumber(low))
end

local is_anew = control.feed == ''
local repeats, mark = is_anew, ''
if not is_anew then
  local stored = redis.call('HMGET', KEYS[1], control.source, control.source .. '~')
  local before = stored[2]
  mark = stored[1] or ''
  local epoch, applied = string.match(mark, '^(%d+)%.(.+)$')
  local known_epoch, known_id = string.match(control.known, '^(%d+)%.(.+)$')
  if known_epoch == control.source_epoch then
    local is_older = not epoch or tonumber(epoch) < tonumber(known_epoch)
    if is_older or (epoch == known_epoch and is_above(known_id, applied)) then
      return {'behind', mark}
    end
  end
  if epoch == control.source_epoch and not is_above(control.feed, applied) then
    return {'ok', mark}
  end
  if epoch and epoch ~= control.source_epoch then
    -- The source has a new epoch and sends its feed again: what came up to here may be known already.
    before = applied
    redis.call('HSET', KEYS[1], control.source .. '~', before)
  end
  repeats = before and not is_above(control.feed, before)
end

for _, row in ipairs(control.index) do
  if row[1] > 0 then
    redis.call('ZADD', KEYS[row[1]], 'GT', row[3], row[2])
  end
  if row[4] > 0 then
    redis.call('ZREM', KEYS[row[4]], row[2])
  end
end

local time = redis.call('TIME')
local now = number_text(tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000))

for _, inbox in ipairs(control.inbox) do
  local head, stream = KEYS[inbox.keys[1]], KEYS[inbox.keys[2]]
  local found = redis.call('HMGET', head, 'epoch', 'seq', 'chain', 'bytes', 'ordered')
  local top, chain, bytes = tonumber(found[2] or '0'), found[3], tonumber(found[4] or '0')
  if not found[1] then
    chain = string.sub(redis.sha1hex(inbox.mint), 1, 8)
    redis.call('HSET', head, 'epoch', inbox.mint, 'first', '1')
  end
  -- An earlier version moves seq alone: the order is whole again once a reader has made it anew.
  local is_ordered = (found[5] or '0') == (found[2] or '0')
  local known = {}
  if repeats then
    for _, entry in ipairs(redis.call('XREVRANGE', stream, '+', '-', 'COUNT', REPEAT_WINDOW)) do
      known[entry[2][2]] = true
    end
  end
  local first, previous = top + 1, chain
  local hint, hint_size = {}, 0
  for _, event in ipairs(inbox.events) do
    if not known[event[1]] then
      known[event[1]] = true
      top = top + 1
      local opening = '{"sequence":' .. number_text(top) .. ','
      local data = opening .. ARGV[event[3]]
      local row = {'i', event[1], 'k', event[2], 'p', chain, 'd', data}
      local frame, facade = '-', '-'
      if event[4] > 0 then
        frame = number_text(#data - 2 - event[4]) .. ',' .. number_text(event[4])
        row[#row + 1] = 'w'
        row[#row + 1] = frame
      end
      if event[5] ~= '' then
        facade = event[5]
        row[#row + 1] = 't'
        row[#row + 1] = facade
      end
      redis.call('XADD', stream, number_text(top) .. '-0', unpack(row))
      chain = string.sub(redis.sha1hex(chain .. event[1]), 1, 8)
      bytes = bytes + #data
      local line = event[1] .. ' ' .. event[2] .. ' ' .. frame .. ' ' .. facade .. ' ' .. #data .. '\n'
      hint[#hint + 1] = line
      hint[#hint + 1] = data
      hint_size = hint_size + #line + #data
    end
  end
  redis.call('HSET', head, 'seq', number_text(top), 'chain', chain, 'bytes', number_text(bytes))
  if is_ordered then
    redis.call('HSET', head, 'ordered', number_text(top))
  end
  for _, action in ipairs(inbox.pending) do
    if action[2] > 0 then
      redis.call('HSET', KEYS[inbox.keys[3]], action[1], ARGV[action[2]])
      redis.call('ZADD', KEYS[inbox.keys[6]], action[3], action[1])
    else
      redis.call('HDEL', KEYS[inbox.keys[3]], action[1])
      redis.call('ZREM', KEYS[inbox.keys[6]], action[1])
      if action[4] > 0 then
        redis.call('ZADD', KEYS[action[4]], action[5], action[1])
      end
    end
  end
  if top >= first then
    local targets = redis.call('HGETALL', KEYS[inbox.keys[4]])
    for n = 1, #targets, 2 do
      if string.sub(targets[n + 1], 1, 5) == 'live|' then
        redis.call('ZADD', KEYS[3], 'NX', now, 'target:' .. targets[n])
      end
    end
    local line = 'e ' .. number_text(first) .. '-' .. number_text(top) .. '.' .. previous .. '.' .. chain .. '\n'
    if #line + hint_size <= HINT_LIMIT then
      line = line .. table.concat(hint)
    end
    redis.call('SPUBLISH', KEYS[inbox.keys[5]], line)
  end
end
if is_anew then
  return {'ok', mark}
end
local reached = control.source_epoch .. '.' .. control.feed
redis.call('HSET', KEYS[1], control.source, reached)
return {'ok', reached}
