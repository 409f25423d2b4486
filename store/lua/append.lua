#!lua
-- append: the only writer of facts. Compares versions, adds events to one session's stream, advances its chain, writes
-- snapshots, moves due rows and sets, feeds the relays and publishes one hint. The hint contains the events if this
-- server knows of a subscriber to the stream.
--
-- KEYS  1 head (of the session)   2 stream (of the session)   3 meta (of the shard)   4 due   5 open_set   6 task_set
--       7 targets   8 feed   9 hints   10.. entities, own sets and the idempotency row, by index
-- ARGV  1 control, JSON; members after the first four are left out if empty:
--         op           operation id of this append
--         shard_epoch  expected epoch of the shard, decimal text
--         mint         epoch for the stream if it has to be made, 8 hex digits
--         session      id of the session, for the feed
--         at           time of the events, RFC 3339 in milliseconds
--         events       ids of the events
--         facades      facade ids of the events that have one
--         entities     list of [key, version, op, parts, fields]: expected version (text) and operation;
--                      parts of the snapshot, each an index into ARGV, or minus the index of the event whose
--                      sequence is inserted; fields = name, index into ARGV or 0 to remove, of each.
--                      Without parts and fields the entity is only compared
--         fence        [key, text]: field own of the task must be this text
--         runs         list of [key, incarnation, run, task, enters]
--         claim        [member, score text]
--         not_after    milliseconds as text
--         dropped      members to remove from the due set
--         due          milliseconds as text and member, of each row to set
--         open         member, event index or false to close, of each
--         times        milliseconds as text and facade id, of each
--         feed         [look, rows]: adds a feed row; look: a projection has to process the events;
--                      rows of owners' lists as text, "<owner> <facade id> <ms>" each
--         targets      list of [target, filter or false to end it, whether it gets the whole state first]; the first
--                      one needs stuck, the index of the shard's stuck targets
--         idem         [key, digest, index into ARGV of the result, lifetime in ms as text]
--       2.. the packed events, if there are any; then byte strings
-- USES  server_ms int_text is_archived wake_lease TARGET LIVE_TARGET_FORMAT wake_targets write_events
-- RETURNS  ok first last chain now woken | again has_result result | conflict which version op
--          | fenced | unclaimed | late now | epoch current | early at | archived
--          early = the stream ends with an event of that later time; archived = the session has to be restored first
--          woken = how many targets got a due row; which = 1-based place in entities, 0 for the idempotency row
-- NEVER  decides a domain transition, decodes an envelope or a snapshot, or writes before every check passed.

-- Flat lists for frequent members: a table costs more than its content.
local NONE = {}
local events, entities, runs = control.events or NONE, control.entities or NONE, control.runs or NONE

-- Lua passes on less than 8,000 values at once.
local MOST_WORDS = 4000
local function some_of(words, n)
  return unpack(words, n, math.min(n + MOST_WORDS - 1, #words))
end

-- 1. Has this operation run already? Checked before anything that its first run may have changed.
if control.idem then
  local index, digest = unpack(control.idem)
  local row = redis.call('GET', KEYS[index])
  if row then
    local cut = string.find(row, '\n', 1, true)
    if string.sub(row, 1, cut - 1) == digest then
      return {'again', 1, string.sub(row, cut + 1)}
    end
    return {'conflict', 0, '0', ''}
  end
end
local stored = {}
for place, entity in ipairs(entities) do
  local index = entity[1]
  local found = redis.call('HMGET', KEYS[index], 'v', 'op')
  if found[2] == control.op then
    return {'again', 0, ''}
  end
  stored[place] = found
end

-- 2. Every comparison, before the first write.
local shard_epoch = redis.call('HGET', meta, 'epoch') or '0'
if shard_epoch ~= control.shard_epoch then
  return {'epoch', shard_epoch}
end
if control.fence then
  local index, driver = unpack(control.fence)
  if redis.call('HGET', KEYS[index], 'own') ~= driver then
    return {'fenced'}
  end
end
local rests = {}
for place, entry in ipairs(runs) do
  local own_index, incarnation, _, _, enters = unpack(entry)
  if enters then
    local set = redis.call('HMGET', KEYS[own_index], 'inc', 'gone', 'rest')
    if set[1] ~= incarnation or set[2] then
      return {'fenced'}
    end
    rests[place] = set[3]
  end
end
for place, entity in ipairs(entities) do
  local _, expected, expected_op = unpack(entity)
  local version, op = stored[place][1] or '0', stored[place][2] or ''
  if version ~= expected or op ~= expected_op then
    return {'conflict', place, version, op}
  end
end
if control.claim then
  local member, token = unpack(control.claim)
  if redis.call('ZSCORE', due, member) ~= token then
    return {'unclaimed'}
  end
end
local now = server_ms()
local now_text = int_text(now)
if control.not_after and now > tonumber(control.not_after) then
  return {'late', now_text}
end

local found = redis.call('HMGET', head, 'epoch', 'seq', 'chain', 'bytes', 'at')
if control.at and found[5] and found[5] > control.at then
  return {'early', found[5]}
end
if not found[1] and is_archived(meta, control.session) then
  return {'archived'}
end

-- 3. Events, with dense ids and the chain.
local epoch, before, previous, chain = found[1], tonumber(found[2] or '0'), found[3], found[3]
local sequences, hint = NONE, nil
if #events > 0 then
  sequences, epoch, before, previous, chain, hint =
    write_events(head, stream, hints, found, control.mint, events, ARGV[2], control.at)
end

-- 4. Snapshots, with the sequences assigned above.
for _, entity in ipairs(entities) do
  local index, expected, _, parts, fields = unpack(entity)
  local key = KEYS[index]
  if #parts > 0 or #fields > 0 then
    local row = {'v', int_text(tonumber(expected) + 1), 'op', control.op}
    if #parts > 0 then
      for n, part in ipairs(parts) do
        parts[n] = part > 0 and ARGV[part] or sequences[-part]
      end
      row[5], row[6] = 's', table.concat(parts)
    end
    for n = 1, #fields, 2 do
      if fields[n + 1] > 0 then
        row[#row + 1] = fields[n]
        row[#row + 1] = ARGV[fields[n + 1]]
      else
        redis.call('HDEL', key, fields[n])
      end
    end
    for n = 1, #row, MOST_WORDS do
      redis.call('HSET', key, some_of(row, n))
    end
  end
end

-- 5. Due rows, open entities, driven runs, webhook targets, and the hint.
if control.claim then
  redis.call('ZREM', due, control.claim[1])
end
local dropped, set, times = control.dropped or NONE, control.due or NONE, control.times or NONE
for n = 1, #dropped, MOST_WORDS do
  redis.call('ZREM', due, some_of(dropped, n))
end
for n = 1, #set, MOST_WORDS do
  redis.call('ZADD', due, some_of(set, n))
end
local open = control.open or NONE
for n = 1, #open, 2 do
  if open[n + 1] then
    redis.call('ZADD', open_set, 'NX', sequences[open[n + 1]], open[n])
  else
    redis.call('ZREM', open_set, open[n])
  end
end
for n = 1, #times, MOST_WORDS do
  redis.call('ZADD', task_set, some_of(times, n))
end
for place, entry in ipairs(runs) do
  local own_index, _, run, task, enters = unpack(entry)
  local own = KEYS[own_index]
  if enters then
    redis.call('HSET', own, 'r:' .. run, task)
    wake_lease(own, due, rests[place], now)
  else
    redis.call('HDEL', own, 'r:' .. run)
  end
end
if control.idem then
  local index, digest, result, lifetime = unpack(control.idem)
  redis.call('SET', KEYS[index], digest .. '\n' .. ARGV[result], 'PX', lifetime)
end
local woken = 0
for _, change in ipairs(control.targets or NONE) do
  local name, filter, whole = unpack(change)
  local kept = redis.call('HGET', targets, name)
  if not filter then
    redis.call('HDEL', targets, name)
    redis.call('ZREM', due, 'target:' .. name)
  else
    local cursor = '00000000.0.00000000'
    if kept then
      cursor = select(4, string.match(kept, TARGET))
    elseif epoch and not whole then
      cursor = epoch .. '.' .. int_text(before) .. '.' .. previous
    end
    redis.call('HSET', targets, name, string.format(LIVE_TARGET_FORMAT, filter, cursor))
  end
  if filter and (kept or whole) then
    woken = woken + redis.call('ZADD', due, 'NX', now_text, 'target:' .. name)
  end
  redis.call('ZREM', KEYS[control.stuck], control.session .. ' ' .. name)
end
if not hint then
  local last = int_text(before)
  return {'ok', last, last, chain or '', now_text, woken}
end
local first, last = sequences[1], sequences[#sequences]
if control.feed then
  local look, rows = unpack(control.feed)
  redis.call('XADD', feed, '*', 's', control.session, 'f', first, 't', last, 'e', shard_epoch,
    'l', look and '1' or '0', 'x', rows)
end
woken = woken + wake_targets(targets, due, now_text, control.facades or NONE)
redis.call('SPUBLISH', hints, hint)
return {'ok', first, last, chain, now_text, woken}
