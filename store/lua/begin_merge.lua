#!lua flags=allow-oom
-- begin_merge: several segments are about to be written as one. It is noted as nothing names it, and said of each of them
-- where its frames stand once more, so that what is forgotten is erased there too.
--
-- KEYS  1 meta (of the shard where they stand)   2 notes (of segments that nothing names)   3 copies (of segments)
-- ARGV  1 control, JSON:
--         segment  the one that is made, "<SHA-256> <bytes> <shard where it stands>"
--         since    ms, text
--         copies   list of [SHA-256 of a segment, what is said of it: "<SHA-256> <bytes> <shift>"]
-- RETURNS  the segment; another one where that was begun before, and nothing is written
-- NEVER  moves the time of a note, or takes away what was said of a segment before.

local begun = redis.call('HGET', meta, 'merge')
if begun and begun ~= control.segment then
  return begun
end
redis.call('HSET', meta, 'merge', control.segment)
redis.call('ZADD', notes, 'NX', control.since, control.segment)
for _, copy in ipairs(control.copies) do
  local sha256, said = unpack(copy)
  local stored = redis.call('HGET', copies, sha256)
  if not stored then
    redis.call('HSET', copies, sha256, said)
  elseif not string.find(stored, said, 1, true) then
    redis.call('HSET', copies, sha256, stored .. ',' .. said)
  end
end
return control.segment
