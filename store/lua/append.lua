#!lua
-- append: the only writer of facts. Compares versions, adds events to one session's stream, advances
-- its chain, writes snapshots, moves due rows and sets, feeds the relays and publishes one hint. The events stand in it
-- where this server knows of somebody who follows the stream.
--
-- KEYS  1 session head   2 session stream  3 shard meta   4 due     5 open set   6 task set
--       7 targets        8 feed            9 hint channel
--       10.. entities, driver sets and the idempotency row, named by index in ARGV[1]
-- ARGV  1 control, JSON; of what follows the first four, a member is left out where there is nothing to say:
--         op           operation id of this append
--         shard_epoch  expected epoch of the shard, decimal text
--         mint         epoch for the stream if it has to be made, 8 hex digits
--         session      id of the session, for the feed
--         at           time of the events, RFC 3339 in milliseconds
--         events       id, type, length, facade of each, one behind the other: length of its A2A frame, which ends two
--                      braces before the envelope, 0: none; facade "": none
--         entities     list of [key, version, op, parts, fields]: expected version (text) and operation;
--                      parts of the snapshot, each an index into ARGV, or minus the index of the event whose
--                      sequence stands there; fields = name, index into ARGV or 0 to remove, of each.
--                      Without parts and fields the entity is compared only
--         fence        [key, text]: field own of the task must be this text
--         runs         list of [key, incarnation, run, task, enters]
--         claim        [member, score text]
--         not_after    milliseconds as text
--         dropped      members to take out of the due set
--         due          milliseconds as text and member, of each row to set
--         open         member, event index or false to close, of each
--         times        milliseconds as text and facade id, of each
--         feed         [look, rows]: adds a feed row; look: a projection has to look at the events;
--                      rows of owners' lists as text, "<owner> <facade id> <ms>" each
--         targets      list of [target, filter or false to end it, whether it gets the whole state first]; the first
--                      one needs stuck, the index of the shard's stuck targets
--         idem         [key, digest, index into ARGV of the result, lifetime in ms as text]
--       2.. the envelopes of the events in their order, each without its opening brace; then byte strings
-- RETURNS  ok first last chain now woken | again has_result result | conflict which version op
--          | fenced | unclaimed | late now | epoch current | early at
--          early = the stream ends with an event of that later time
--          woken = how many targets got a due row; which = 1-based place in entities, 0 for the idempotency row
-- NEVER  decides a domain transition, decodes an envelope or a snapshot, or writes before every check passed.

local HINT_LIMIT = 8192
local control = cjson.decode(ARGV[1])
local head, stream, due = KEYS[1], KEYS[2], KEYS[4]
-- Flat where there are many: a table costs more than what stands in it.
local events, entities, runs = control.events or {}, control.entities or {}, control.runs or {}

local function number_text(n)
  return string.format('%d', n)
end

-- Lua passes on less than 8,000 words at once.
local MOST_WORDS = 4000
local function some_of(words, n)
  return unpack(words, n, math.min(n + MOST_WORDS - 1, #words))
end

-- 1. Has this operation run already? Asked before anything that its first run may have changed.
local idem = control.idem
if idem then
  local row = redis.call('GET', KEYS[idem[1]])
  if row then
    local cut = string.find(row, '\n', 1, true)
    if string.sub(row, 1, cut - 1) == idem[2] then
      return {'again', 1, string.sub(row, cut + 1)}
    end
    return {'conflict', 0, '0', ''}
  end
end
local stored = {}
for place, entity in ipairs(entities) do
  local found = redis.call('HMGET', KEYS[entity[1]], 'v', 'op')
  if found[2] == control.op then
    return {'again', 0, ''}
  end
  stored[place] = found
end

-- 2. Every comparison, before the first write.
local shard_epoch = redis.call('HGET', KEYS[3], 'epoch') or '0'
if shard_epoch ~= control.shard_epoch then
  return {'epoch', shard_epoch}
end
if control.fence and redis.call('HGET', KEYS[control.fence[1]], 'own') ~= control.fence[2] then
  return {'fenced'}
end
for _, run in ipairs(runs) do
  if run[5] then
    local set = redis.call('HMGET', KEYS[run[1]], 'inc', 'gone', 'rest')
    if set[1] ~= run[2] or set[2] then
      return {'fenced'}
    end
    run[6] = set[3]
  end
end
for place, entity in ipairs(entities) do
  local version, op = stored[place][1] or '0', stored[place][2] or ''
  if version ~= entity[2] or op ~= entity[3] then
    return {'conflict', place, version, op}
  end
end
if control.claim and redis.call('ZSCORE', due, control.claim[1]) ~= control.claim[2] then
  return {'unclaimed'}
end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
if control.not_after and now > tonumber(control.not_after) then
  return {'late', number_text(now)}
end

local found = redis.call('HMGET', head, 'epoch', 'seq', 'chain', 'bytes', 'at')
if control.at and found[5] and found[5] > control.at then
  return {'early', found[5]}
end

-- 3. Events, with dense ids and the chain.
local epoch, top, chain, bytes = found[1], tonumber(found[2] or '0'), found[3], tonumber(found[4] or '0')
local made = not epoch and #events > 0
if made then
  epoch = control.mint
  chain = string.sub(redis.sha1hex(epoch), 1, 8)
end
local previous, before = chain, number_text(top)
-- Most streams have nobody who follows them. Of whoever still listens at a former primary this server does not know.
local followed = #events > 0 and redis.call('PUBSUB', 'SHARDNUMSUB', KEYS[9])[2] > 0
-- The first piece of the hint is its own line, which is known last.
local sequences, hint, hint_size = {}, {''}, 0
for n = 1, #events, 4 do
  local id, kind, length, facade = events[n], events[n + 1], events[n + 2], events[n + 3]
  local place = #sequences + 1
  top = top + 1
  local sequence = number_text(top)
  local data = '{"sequence":' .. sequence .. ',' .. ARGV[place + 1]
  local frame = '-'
  if length == 0 and facade == '' then
    redis.call('XADD', stream, sequence .. '-0', 'i', id, 'k', kind, 'p', chain, 'd', data)
  else
    local row = {'i', id, 'k', kind, 'p', chain, 'd', data}
    if length > 0 then
      frame = number_text(#data - 2 - length) .. ',' .. number_text(length)
      row[#row + 1] = 'w'
      row[#row + 1] = frame
    end
    if facade ~= '' then
      row[#row + 1] = 't'
      row[#row + 1] = facade
    end
    redis.call('XADD', stream, sequence .. '-0', unpack(row))
  end
  chain = string.sub(redis.sha1hex(chain .. id), 1, 8)
  bytes = bytes + #data
  sequences[place] = sequence
  if followed and hint_size <= HINT_LIMIT then
    local shown = facade == '' and '-' or facade
    local line = id .. ' ' .. kind .. ' ' .. frame .. ' ' .. shown .. ' ' .. #data .. '\n'
    hint[#hint + 1] = line
    hint[#hint + 1] = data
    hint_size = hint_size + #line + #data
  end
end
local last = number_text(top)
if made then
  redis.call('HSET', head, 'epoch', epoch, 'first', '1', 'seq', last, 'chain', chain, 'bytes', number_text(bytes))
elseif #events > 0 then
  redis.call('HSET', head, 'seq', last, 'chain', chain, 'bytes', number_text(bytes))
end
if control.at then
  redis.call('HSET', head, 'at', control.at)
end

-- 4. Snapshots, with the sequences that nobody knew before.
for _, entity in ipairs(entities) do
  local key, parts, fields = KEYS[entity[1]], entity[4], entity[5]
  if #parts > 0 or #fields > 0 then
    local row = {'v', number_text(tonumber(entity[2]) + 1), 'op', control.op}
    if #parts > 0 then
      for n, index in ipairs(parts) do
        parts[n] = index > 0 and ARGV[index] or sequences[-index]
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

-- 5. What is owed, what is open, who drives it, who must hear of it.
if control.claim then
  redis.call('ZREM', due, control.claim[1])
end
local dropped, set, times = control.dropped or {}, control.due or {}, control.times or {}
for n = 1, #dropped, MOST_WORDS do
  redis.call('ZREM', due, some_of(dropped, n))
end
for n = 1, #set, MOST_WORDS do
  redis.call('ZADD', due, some_of(set, n))
end
local open = control.open or {}
for n = 1, #open, 2 do
  if open[n + 1] then
    redis.call('ZADD', KEYS[5], 'NX', sequences[open[n + 1]], open[n])
  else
    redis.call('ZREM', KEYS[5], open[n])
  end
end
for n = 1, #times, MOST_WORDS do
  redis.call('ZADD', KEYS[6], some_of(times, n))
end
for _, run in ipairs(runs) do
  if run[5] then
    redis.call('HSET', KEYS[run[1]], 'r:' .. run[3], run[4])
    if run[6] and redis.call('HDEL', KEYS[run[1]], 'rest') == 1 then
      -- The lease rested: from now on somebody waits for its end.
      local ends = number_text(now + tonumber(run[6]))
      redis.call('HSET', KEYS[run[1]], 'until', ends)
      redis.call('ZADD', due, ends, string.match(KEYS[run[1]], 'own:.+$'))
    end
  else
    redis.call('HDEL', KEYS[run[1]], 'r:' .. run[3])
  end
end
if idem then
  redis.call('SET', KEYS[idem[1]], idem[2] .. '\n' .. ARGV[idem[3]], 'PX', idem[4])
end
local woken = 0
for _, change in ipairs(control.targets or {}) do
  local name = change[1]
  local kept = redis.call('HGET', KEYS[7], name)
  if not change[2] then
    redis.call('HDEL', KEYS[7], name)
    redis.call('ZREM', due, 'target:' .. name)
  elseif kept then
    local cursor = string.match(kept, '^%a+|[^|]*|%d+|([^|]*)|')
    redis.call('HSET', KEYS[7], name, 'live|' .. change[2] .. '|0|' .. cursor .. '|0|0|')
  else
    local cursor = '00000000.0.00000000'
    if epoch and not change[3] then
      cursor = epoch .. '.' .. before .. '.' .. previous
    end
    redis.call('HSET', KEYS[7], name, 'live|' .. change[2] .. '|0|' .. cursor .. '|0|0|')
  end
  if change[2] and (kept or change[3]) then
    woken = woken + redis.call('ZADD', due, 'NX', number_text(now), 'target:' .. name)
  end
  redis.call('ZREM', KEYS[control.stuck], control.session .. ' ' .. name)
end
if #events == 0 then
  return {'ok', last, last, chain or '', number_text(now), woken}
end
local first = sequences[1]
if control.feed then
  redis.call('XADD', KEYS[8], '*', 's', control.session, 'f', first, 't', last, 'e', shard_epoch,
    'l', control.feed[1] and '1' or '0', 'x', control.feed[2])
end
local targets = redis.call('HGETALL', KEYS[7])
for n = 1, #targets, 2 do
  local state, filter = string.match(targets[n + 1], '^(%a+)|([^|]*)|')
  if state == 'live' then
    for facade = 4, #events, 4 do
      if filter == '*' or filter == events[facade] then
        woken = woken + redis.call('ZADD', due, 'NX', number_text(now), 'target:' .. targets[n])
        break
      end
    end
  end
end

-- 6. The hint: with the bytes while they are few.
local line = 'e ' .. first .. '-' .. last .. '.' .. previous .. '.' .. chain .. '\n'
if followed and #line + hint_size <= HINT_LIMIT then
  hint[1] = line
  line = table.concat(hint)
end
redis.call('SPUBLISH', KEYS[9], line)
return {'ok', first, last, chain, number_text(now), woken}
