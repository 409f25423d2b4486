#!lua flags=allow-oom
-- archive_commit: sessions that a segment of the archive has leave the engine, and rows say where they stand from now
-- on. A session that has changed since it was read stays, with all that is its own.
--
-- KEYS  1 meta (of the shard)   2 segments   3 due   4 notes (of segments that nothing names)
--       5.. keys of the sessions, and buckets of rows, by index
-- ARGV  1 control, JSON:
--         segment      hash and bytes of the object, "<SHA-256> <bytes> <shard where it stands>"
--         number       text; the number of the segment where an earlier call has given it one, else empty
--         sessions     list of [head, stream, open_set, task_set, targets, sequence, chain, entities, listed, receivers,
--                      rows]: entities = list of [key, version, op], the head among them; listed = list of [facade id,
--                      time] of its tasks; receivers = list of [name, stored form]; rows = list of [key, index into
--                      ARGV of its field, index of what stands behind the number]
--       2.. byte strings
-- USES  int_text TARGET
-- RETURNS  number of the segment, or 0 where no session left; then the places of the sessions that stay
-- NEVER  writes anything of a session before all of it was compared, takes one in which something is open or owed, or
--        writes over a row.

local function is_unchanged(session)
  local head, _, open_set, task_set, targets, sequence, chain, entities, listed, receivers, rows = unpack(session)
  local found = redis.call('HMGET', KEYS[head], 'seq', 'chain')
  if found[1] ~= sequence or found[2] ~= chain or redis.call('ZCARD', KEYS[open_set]) > 0 then
    return false
  end
  for _, entity in ipairs(entities) do
    local stored = redis.call('HMGET', KEYS[entity[1]], 'v', 'op')
    if (stored[1] or '0') ~= entity[2] or (stored[2] or '') ~= entity[3] then
      return false
    end
  end
  for _, row in ipairs(rows) do
    -- What is in the engine has no row: this one is of another id with the same hash.
    if redis.call('HGET', KEYS[row[1]], ARGV[row[2]]) then
      return false
    end
  end
  if redis.call('ZCARD', KEYS[task_set]) ~= #listed then
    return false
  end
  for _, task in ipairs(listed) do
    if redis.call('ZSCORE', KEYS[task_set], task[1]) ~= task[2] then
      return false
    end
  end
  if redis.call('HLEN', KEYS[targets]) ~= #receivers then
    return false
  end
  for _, receiver in ipairs(receivers) do
    local name, stored = unpack(receiver)
    if redis.call('HGET', KEYS[targets], name) ~= stored then
      return false
    end
    local state = string.match(stored, TARGET)
    if state == 'backoff' or (state == 'live' and redis.call('ZSCORE', due, 'target:' .. name)) then
      return false
    end
  end
  return true
end

local number = tonumber(control.number) or 0
local stay = {}
for place, session in ipairs(control.sessions) do
  if is_unchanged(session) then
    if number == 0 then
      -- The same bytes have one number: a call whose reply was lost is made again.
      number = tonumber(redis.call('ZSCORE', segments, control.segment) or '0')
    end
    if number == 0 then
      number = redis.call('HINCRBY', meta, 'segments', 1)
      redis.call('ZADD', segments, int_text(number), control.segment)
      redis.call('ZREM', notes, control.segment)
    end
    local prefix = struct.pack('>I4', number)
    local head, stream, open_set, task_set, targets, _, _, entities, _, _, rows = unpack(session)
    for _, row in ipairs(rows) do
      redis.call('HSET', KEYS[row[1]], ARGV[row[2]], prefix .. ARGV[row[3]])
    end
    for _, entity in ipairs(entities) do
      redis.call('UNLINK', KEYS[entity[1]])
    end
    redis.call('UNLINK', KEYS[head], KEYS[stream], KEYS[open_set], KEYS[task_set], KEYS[targets])
  else
    stay[#stay + 1] = place
  end
end
return {number, stay}
