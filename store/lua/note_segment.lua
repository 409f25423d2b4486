#!lua flags=allow-oom
-- note_segment: notes a segment of the archive that nothing names. Also where memory is full: what leaves makes room.
--
-- KEYS  1 notes (of segments that nothing names)
-- ARGV  1 control, JSON: segment ("<SHA-256> <bytes> <shard where it stands>"), since (ms, text)
-- RETURNS  1 | 0; 0: it is noted already
-- NEVER  moves the time of a note.

return redis.call('ZADD', notes, 'NX', control.since, control.segment)
