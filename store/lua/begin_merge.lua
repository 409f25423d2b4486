#!lua flags=allow-oom
-- begin_merge: several segments are about to be written as one. The new one is noted as unnamed, and recorded as a copy
-- of each old one, so that forgotten frames are erased there too.
--
-- KEYS  1 meta (of their shard)   2 notes (of segments that nothing names)   3 copies (of segments)
-- ARGV  1 control, JSON:
--         segment  the new one, "<SHA-256> <bytes> <shard of the object>"
--         since    ms, text
--         copies   list of [SHA-256 of an old segment, its copy: "<SHA-256> <bytes> <shift>"]
-- RETURNS  the segment; another one if its merge was begun before, and nothing is written
-- NEVER  moves the time of a note, or removes recorded copies.

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
