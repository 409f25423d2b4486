#!lua flags=allow-oom
-- note_erasures: notes forgotten frames of a segment before it is read and rewritten without them. A concurrent writer
-- erases these as well.
--
-- KEYS  1 erasures (of the segment)
-- ARGV  1 control, JSON: frames (list of [offset, tombstone], text), keep (lifetime of the notes in ms)
-- RETURNS  all notes of the segment: offset, tombstone, and so on
-- NEVER  replaces the tombstone of a frame.

for _, frame in ipairs(control.frames) do
  redis.call('HSETNX', erasures, frame[1], frame[2])
end
redis.call('PEXPIRE', erasures, control.keep)
return redis.call('HGETALL', erasures)
