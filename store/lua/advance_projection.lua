#!lua
-- advance_projection: applies rows of one source shard to views in one destination shard, then moves the mark.
--
-- KEYS  1 marks   2 meta (of the destination shard)   3 due   4.. keys of the rows, by index
-- ARGV  1 control, JSON:
--         source       tag of the source shard; with "+" for notes of tenants, which have a mark of their own
--         batch        how many events one entry of a stream has at most
--         source_epoch its shard epoch, decimal text
--         feed         feed id of the rows, "<ms>-<n>"; "": rows rebuilt from the streams, outside of the order of the
--                      feed: no mark is compared or moved
--         epoch        expected shard epoch of the destination, decimal text
--         known        last seen mark of the destination, "<epoch>.<ms>-<n>", or ""
--         index        list of [key or 0, member, score text, key that the member leaves or 0]: the later time wins;
--                      key 0: the member leaves only
--         inbox_bytes  limit of an inbox: above it the oldest entries are dropped, unless repeats may search for them
--         rows         notes of list changes of an owner or a tenant, in the form of inbox and without pending:
--                      written only if the stream has a head, which it has while it is followed
--         inbox        list of {keys = {head, stream, open, targets, hints, order}, mint, events, pending};
--                      events: [id, index into ARGV of its stored fields];
--                      pending: list of [action, index into ARGV of the view or 0 to remove, milliseconds as text,
--                      key of the closed ones with its state or 0, milliseconds of the end as text]
--       2.. byte strings
-- USES  server_ms int_text wake_targets write_events drop_entries
-- RETURNS  {"ok", current mark, followed tenants ("<key>=<epoch> …")} | {"epoch", current} |
--          {"behind", mark found or ""}: nothing was applied, because the mark is lower than the known one of the same
--          epoch of the source: the destination has lost rows
-- NEVER  applies a feed id that is not above the stored mark, unless the source has a new epoch; ids are
--        compared as pairs of numbers. Adds an entry again that is among the last 2048 of an inbox, from a repeated or
--        rebuilt row.

local REPEAT_WINDOW = 2048

local state = redis.call('HMGET', meta, 'epoch', 'watched')
local current, watched = state[1] or '0', state[2] or ''
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
  local stored = redis.call('HMGET', marks, control.source, control.source .. '~')
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
    return {'ok', mark, watched}
  end
  if epoch and epoch ~= control.source_epoch then
    -- The source has a new epoch and sends its feed again: rows up to this id may have been applied before.
    before = applied
    redis.call('HSET', marks, control.source .. '~', before)
  end
  repeats = before and not is_above(control.feed, before)
end

for _, row in ipairs(control.index) do
  local part, member, score, left = unpack(row)
  if part > 0 then
    redis.call('ZADD', KEYS[part], 'GT', score, member)
  end
  if left > 0 then
    redis.call('ZREM', KEYS[left], member)
  end
end

-- Collects the event ids of stored entries: the first of each six fields after the first three. An entry of an older
-- version is one event, its id first.
local function note_ids(known, entries)
  for _, entry in ipairs(entries) do
    local members = entry[2]
    if members[1] == 'i' then
      known[members[2]] = true
    else
      local place = 0
      for text in string.gmatch(members[4], '([^\31]*)\31?') do
        place = place + 1
        if place % 6 == 4 then
          known[text] = true
        end
      end
    end
  end
end

local now = int_text(server_ms())
local written = {}
for _, rows in ipairs(control.rows) do
  if redis.call('EXISTS', KEYS[rows.keys[1]]) == 1 then
    rows.is_noted, rows.pending = true, {}
    written[#written + 1] = rows
  end
end
for _, inbox in ipairs(control.inbox) do
  written[#written + 1] = inbox
end
for _, inbox in ipairs(written) do
  local head_index, stream_index, open_index, targets_index, hints_index, order_index = unpack(inbox.keys)
  local head, stream, hints = KEYS[head_index], KEYS[stream_index], KEYS[hints_index]
  local open, order = KEYS[open_index], KEYS[order_index]
  local found = redis.call('HMGET', head, 'epoch', 'seq', 'chain', 'bytes', 'ordered')
  -- An earlier version moves seq alone: the order is complete again once a reader has rebuilt it.
  local is_ordered = (found[5] or '0') == (found[2] or '0')
  local known = {}
  if repeats then
    note_ids(known, redis.call('XREVRANGE', stream, '+', '-', 'COUNT', REPEAT_WINDOW))
  end
  local ids, packed = {}, {}
  for _, event in ipairs(inbox.events) do
    local id, index = unpack(event)
    if not known[id] then
      known[id] = true
      ids[#ids + 1], packed[#packed + 1] = id, ARGV[index]
    end
  end
  local last, published = found[2] or '0', {}
  for first = 1, #ids, control.batch do
    local upto = math.min(first + control.batch - 1, #ids)
    local batch = {unpack(ids, first, upto)}
    -- Fields shared by the events of an entry are empty here: each packed event is complete.
    local entry = '\31\31\31' .. table.concat(packed, '\31', first, upto)
    local sequences, epoch, _, _, chain, hint = write_events(head, stream, hints, found, inbox.mint, batch, entry)
    last, published[#published + 1] = sequences[#sequences], hint
    found = {epoch, last, chain, redis.call('HGET', head, 'bytes')}
  end
  if is_ordered and not inbox.is_noted then
    redis.call('HSET', head, 'ordered', last)
  end
  if tonumber(found[4] or '0') > control.inbox_bytes then
    -- One entry more than was added; an inbox far above the limit, as in earlier versions, shrinks gradually.
    local most = #ids + (tonumber(found[4]) > 2 * control.inbox_bytes and 64 or 1)
    drop_entries(head, stream, tonumber(found[4]), most, function(upto, _, left)
      return left > control.inbox_bytes and upto <= tonumber(last) - REPEAT_WINDOW
    end)
  end
  for _, change in ipairs(inbox.pending) do
    local action, view, asked_ms, closed, closed_ms = unpack(change)
    if view > 0 then
      redis.call('HSET', open, action, ARGV[view])
      redis.call('ZADD', order, asked_ms, action)
    else
      redis.call('HDEL', open, action)
      redis.call('ZREM', order, action)
      if closed > 0 then
        redis.call('ZADD', KEYS[closed], closed_ms, action)
      end
    end
  end
  if #published > 0 and not inbox.is_noted then
    -- Receivers of an inbox want all events.
    wake_targets(KEYS[targets_index], due, now, {})
  end
  for _, hint in ipairs(published) do
    redis.call('SPUBLISH', hints, hint)
  end
end
if is_anew then
  return {'ok', mark, watched}
end
local reached = control.source_epoch .. '.' .. control.feed
redis.call('HSET', marks, control.source, reached)
return {'ok', reached, watched}
