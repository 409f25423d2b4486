#!lua flags=allow-oom
-- note_erasures: says which frames of a segment are forgotten, before it is read to be written without them. Whoever
-- writes it at the same time takes these with it.
--
-- KEYS  1 erasures (of the segment)
-- ARGV  1 control, JSON: frames (list of [offset, tombstone], text), keep (ms that all of it is known)
-- RETURNS  all that is noted of the segment: offset, tombstone, and so on
-- NEVER  gives a frame another tombstone.

for _, frame in ipairs(control.frames) do
  redis.call('HSETNX', erasures, frame[1], frame[2])
end
redis.call('PEXPIRE', erasures, control.keep)
return redis.call('HGETALL', erasures)
