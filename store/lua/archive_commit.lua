#!lua flags=allow-oom
-- archive_commit: removes the sessions of an archive segment from the engine, and writes rows with their position
-- there. A session that has changed since it was read stays, with everything that belongs to it.
--
-- KEYS  1 meta (of the shard)   2 segments   3 due   4 notes (of segments that nothing names)
--       5.. keys of the sessions, and buckets of rows, by index
-- ARGV  1 control, JSON:
--         segment      hash and bytes of the object, "<SHA-256> <bytes> <shard of the object>"
--         number       text; the number of the segment if an earlier call has assigned one, else empty
--         sessions     list of [key, value, entities, listed, receivers]: where its keys begin in KEYS, and its values
--                      in ARGV; its number of entities, of words of its task list and of words of its receivers.
--                      Its keys: head, stream, open_set, task_set, targets; each entity, the head among them; the
--                      bucket of the row of each. Its values: the row after the number; sequence, chain; version, op
--                      and row name of each entity; facade id and time of each listed task; name and stored form of
--                      each receiver
--       2.. byte strings
-- USES  int_text TARGET
-- RETURNS  number of the segment, or 0 if no session was archived; then the places of the sessions that stay
-- NEVER  writes anything of a session before all of it was compared, archives one in which something is open or
--        pending, or overwrites a row.

local HEAD, STREAM, OPEN_SET, TASK_SET, TARGETS, ENTITIES = 0, 1, 2, 3, 4, 5
local REST, SEQUENCE, CHAIN, STAMPS, STAMP = 0, 1, 2, 3, 3

local function is_unchanged(session)
  local key, value, entities, listed, receivers = unpack(session)
  local found = redis.call('HMGET', KEYS[key + HEAD], 'seq', 'chain')
  if found[1] ~= ARGV[value + SEQUENCE] or found[2] ~= ARGV[value + CHAIN] then
    return false
  end
  if redis.call('ZCARD', KEYS[key + OPEN_SET]) > 0 then
    return false
  end
  local at = value + STAMPS
  for entity = key + ENTITIES, key + ENTITIES + entities - 1 do
    local stored = redis.call('HMGET', KEYS[entity], 'v', 'op')
    if (stored[1] or '0') ~= ARGV[at] or (stored[2] or '') ~= ARGV[at + 1] then
      return false
    end
    -- An entity in the engine has no row: this one belongs to another id with the same hash.
    if redis.call('HGET', KEYS[entity + entities], ARGV[at + 2]) then
      return false
    end
    at = at + STAMP
  end
  local tasks = redis.call('ZRANGE', KEYS[key + TASK_SET], 0, -1, 'WITHSCORES')
  if #tasks ~= listed then
    return false
  end
  for n, word in ipairs(tasks) do
    if word ~= ARGV[at + n - 1] then
      return false
    end
  end
  at = at + listed
  if redis.call('HLEN', KEYS[key + TARGETS]) * 2 ~= receivers then
    return false
  end
  for n = at, at + receivers - 1, 2 do
    local name, stored = ARGV[n], ARGV[n + 1]
    if redis.call('HGET', KEYS[key + TARGETS], name) ~= stored then
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
      -- The same bytes have one number: a call is repeated if its reply was lost.
      number = tonumber(redis.call('ZSCORE', segments, control.segment) or '0')
    end
    if number == 0 then
      number = redis.call('HINCRBY', meta, 'segments', 1)
      redis.call('ZADD', segments, int_text(number), control.segment)
      redis.call('ZREM', notes, control.segment)
    end
    local prefix = struct.pack('>I4', number)
    local key, value, entities = unpack(session)
    local at, row = value + STAMPS, prefix .. ARGV[value + REST]
    for entity = key + ENTITIES, key + ENTITIES + entities - 1 do
      redis.call('HSET', KEYS[entity + entities], ARGV[at + 2], row)
      redis.call('UNLINK', KEYS[entity])
      at = at + STAMP
    end
    redis.call('UNLINK', unpack(KEYS, key + HEAD, key + TARGETS))
  else
    stay[#stay + 1] = place
  end
end
return {number, stay}
