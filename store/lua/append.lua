#!lua
-- append: the only writer of facts. Compares versions, adds events to one session's stream, advances
-- its chain, writes snapshots, moves due rows and sets, feeds the relays and gives those who follow the stream one
-- hint. Most streams have nobody who follows them: then no hint is made.
--
-- KEYS  1 session head   2 session stream  3 shard meta   4 due     5 open set   6 task set
--       7 targets        8 feed            9 hint channel
--       10.. entities, driver sets and the idempotency row, named by index in ARGV[1]
-- ARGV  1 control, JSON:
--         op           operation id of this append
--         shard_epoch  expected epoch of the shard, decimal text
--         mint         epoch for the stream if it has to be made, 8 hex digits
--         session      id of the session, for the feed
--         entities     list of [key, version, op, parts, fields]: expected version (text) and operation;
--                      parts of the snapshot, each an index into ARGV, or minus the index of the event whose
--                      sequence stands there; fields = list of [name, index into ARGV or 0 to remove].
--                      Without parts and fields the entity is compared only
--         events       list of [id, type, body, length, facade]: body = index into ARGV of the envelope without its
--                      opening brace; length of its A2A frame, which ends two braces before it, 0: none; facade "": none
--         fence        false or [key, text]: field own of the task must be this text
--         runs         list of [key, incarnation, run, task, enters]
--         claim        false or [member, score text]
--         not_after    false or milliseconds as text
--         due          list of [member, milliseconds as text, or false to drop]
--         open         list of [member, event index, or false to close]
--         times        list of [facade id, milliseconds as text]
--         feed         false or [look, rows]: adds a feed row; look: a projection has to look at the events;
--                      rows of owners' lists as text, "<owner> <facade id> <ms>" each
--         targets      list of [target, filter or false to end it, whether it gets the whole state first]; the first
--                      one needs stuck, the index of the shard's stuck targets
--         idem         false or [key, digest, index into ARGV of the result, lifetime in ms as text]
--       2.. byte strings
-- RETURNS  ok first last chain now woken | again has_result result | conflict which version op
--          | fenced | unclaimed | late now | epoch current
--          woken = how many targets got a due row; which = 1-based place in entities, 0 for the idempotency row
-- NEVER  decides a domain transition, decodes an envelope or a snapshot, or writes before every check passed.

local HINT_LIMIT = 8192
local control = cjson.decode(ARGV[1])
local head, stream, due = KEYS[1], KEYS[2], KEYS[4]

local function number_text(n)
  return string.format('%d', n)
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
for place, entity in ipairs(control.entities) do
  local found = redis.call('HMGET', KEYS[entity[1]], 'v', 'op')
  stored[place] = {found[1] or '0', found[2] or ''}
  if stored[place][2] == control.op then
    return {'again', 0, ''}
  end
end

-- 2. Every comparison, before the first write.
local shard_epoch = redis.call('HGET', KEYS[3], 'epoch') or '0'
if shard_epoch ~= control.shard_epoch then
  return {'epoch', shard_epoch}
end
if control.fence and redis.call('HGET', KEYS[control.fence[1]], 'own') ~= control.fence[2] then
  return {'fenced'}
end
for _, run in ipairs(control.runs) do
  if run[5] then
    local set = redis.call('HMGET', KEYS[run[1]], 'inc', 'gone')
    if set[1] ~= run[2] or set[2] then
      return {'fenced'}
    end
  end
end
for place, entity in ipairs(control.entities) do
  if stored[place][1] ~= entity[2] or stored[place][2] ~= entity[3] then
    return {'conflict', place, stored[place][1], stored[place][2]}
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

-- 3. Events, with dense ids and the chain.
local found = redis.call('HMGET', head, 'epoch', 'seq', 'chain', 'bytes')
local epoch, top, chain, bytes = found[1], tonumber(found[2] or '0'), found[3], tonumber(found[4] or '0')
local made = not epoch and #control.events > 0
if made then
  epoch = control.mint
  chain = string.sub(redis.sha1hex(epoch), 1, 8)
end
local previous, before = chain, number_text(top)
-- Who follows subscribes at the primary, so this server knows of everybody.
local followed = #control.events > 0 and redis.call('PUBSUB', 'SHARDNUMSUB', KEYS[9])[2] > 0
-- The first piece of the hint is its own line, which is known last.
local sequences, hint, hint_size = {}, {''}, 0
for place, event in ipairs(control.events) do
  top = top + 1
  local sequence = number_text(top)
  local opening = '{"sequence":' .. sequence .. ','
  local data = opening .. ARGV[event[3]]
  local row = {'i', event[1], 'k', event[2], 'p', chain, 'd', data}
  local frame = '-'
  if event[4] > 0 then
    frame = number_text(#data - 2 - event[4]) .. ',' .. number_text(event[4])
    row[#row + 1] = 'w'
    row[#row + 1] = frame
  end
  local facade = '-'
  if event[5] ~= '' then
    facade = event[5]
    row[#row + 1] = 't'
    row[#row + 1] = facade
  end
  redis.call('XADD', stream, sequence .. '-0', unpack(row))
  chain = string.sub(redis.sha1hex(chain .. event[1]), 1, 8)
  bytes = bytes + #data
  sequences[place] = sequence
  if followed and hint_size <= HINT_LIMIT then
    local line = event[1] .. ' ' .. event[2] .. ' ' .. frame .. ' ' .. facade .. ' ' .. #data .. '\n'
    hint[#hint + 1] = line
    hint[#hint + 1] = data
    hint_size = hint_size + #line + #data
  end
end
local last = number_text(top)
if made then
  redis.call('HSET', head, 'epoch', epoch, 'first', '1', 'seq', last, 'chain', chain, 'bytes', number_text(bytes))
elseif #control.events > 0 then
  redis.call('HSET', head, 'seq', last, 'chain', chain, 'bytes', number_text(bytes))
end

-- 4. Snapshots, with the sequences that nobody knew before.
for place, entity in ipairs(control.entities) do
  local key, parts = KEYS[entity[1]], {}
  for n, index in ipairs(entity[4]) do
    parts[n] = index > 0 and ARGV[index] or sequences[-index]
  end
  if #parts > 0 or #entity[5] > 0 then
    local row = {'v', number_text(tonumber(stored[place][1]) + 1), 'op', control.op}
    if #parts > 0 then
      row[5], row[6] = 's', table.concat(parts)
    end
    for _, field in ipairs(entity[5]) do
      if field[2] > 0 then
        row[#row + 1] = field[1]
        row[#row + 1] = ARGV[field[2]]
      else
        redis.call('HDEL', key, field[1])
      end
    end
    redis.call('HSET', key, unpack(row))
  end
end

-- 5. What is owed, what is open, who drives it, who must hear of it.
if control.claim then
  redis.call('ZREM', due, control.claim[1])
end
for _, row in ipairs(control.due) do
  if row[2] then
    redis.call('ZADD', due, row[2], row[1])
  else
    redis.call('ZREM', due, row[1])
  end
end
for _, row in ipairs(control.open) do
  if row[2] then
    redis.call('ZADD', KEYS[5], 'NX', sequences[row[2]], row[1])
  else
    redis.call('ZREM', KEYS[5], row[1])
  end
end
for _, row in ipairs(control.times) do
  redis.call('ZADD', KEYS[6], row[2], row[1])
end
for _, run in ipairs(control.runs) do
  if run[5] then
    redis.call('HSET', KEYS[run[1]], 'r:' .. run[3], run[4])
  else
    redis.call('HDEL', KEYS[run[1]], 'r:' .. run[3])
  end
end
if idem then
  redis.call('SET', KEYS[idem[1]], idem[2] .. '\n' .. ARGV[idem[3]], 'PX', idem[4])
end
local woken = 0
for _, change in ipairs(control.targets) do
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
if #control.events == 0 then
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
    for _, event in ipairs(control.events) do
      if filter == '*' or filter == event[5] then
        woken = woken + redis.call('ZADD', due, 'NX', number_text(now), 'target:' .. targets[n])
        break
      end
    end
  end
end

-- 6. The hint: with the bytes while they are few.
if followed then
  local line = 'e ' .. first .. '-' .. last .. '.' .. previous .. '.' .. chain .. '\n'
  if #line + hint_size <= HINT_LIMIT then
    hint[1] = line
    line = table.concat(hint)
  end
  redis.call('SPUBLISH', KEYS[9], line)
end
return {'ok', first, last, chain, number_text(now), woken}
