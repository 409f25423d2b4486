#!lua
-- restore_session: restores a session from the archive, unchanged, so that it can continue; or imports one from another
-- store.
--
-- KEYS  1 head (of the session)   2 stream   3 task_set   4 targets   5.. entities, and buckets of rows, by index
-- ARGV  1 control, JSON:
--         row          index into ARGV of the value of each row: its position in the archive; false for a session of
--                      another store, of which neither a row nor an entity may exist here
--         rows         list of [key, index of its field]
--         entities     list of [key, index of the first of its names and values, index of the last]
--         tasks        [index of the first of its ids and times, index of the last], or false
--         receivers    the same of webhook receivers
--         entries      list of [id, index of its first member, index of the last]
--       2.. byte strings
-- RETURNS  1 | 0; 0: it is here already, or has another position in the archive now
-- NEVER  overwrites an existing session, or leaves an archive row of a restored one.

local MOST_WORDS = 4000

local function each_part(words, put)
  local first, last = unpack(words)
  for n = first, last, MOST_WORDS do
    put(unpack(ARGV, n, math.min(n + MOST_WORDS - 1, last)))
  end
end

if redis.call('HGET', head, 'seq') then
  return 0
end
local stands_at = control.row and ARGV[control.row]
for _, row in ipairs(control.rows) do
  if redis.call('HGET', KEYS[row[1]], ARGV[row[2]]) ~= stands_at then
    return 0
  end
end
if not stands_at then
  for _, entity in ipairs(control.entities) do
    if redis.call('EXISTS', KEYS[entity[1]]) == 1 then
      return 0
    end
  end
end

for _, entity in ipairs(control.entities) do
  each_part({ entity[2], entity[3] }, function(...) redis.call('HSET', KEYS[entity[1]], ...) end)
end
if control.tasks then
  each_part(control.tasks, function(...) redis.call('ZADD', task_set, ...) end)
end
if control.receivers then
  each_part(control.receivers, function(...) redis.call('HSET', targets, ...) end)
end
for _, entry in ipairs(control.entries) do
  redis.call('XADD', stream, entry[1], unpack(ARGV, entry[2], entry[3]))
end
if stands_at then
  for _, row in ipairs(control.rows) do
    redis.call('HDEL', KEYS[row[1]], ARGV[row[2]])
  end
end
return 1
