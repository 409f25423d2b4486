#!lua flags=allow-oom
-- note_segment: notes an archive segment that nothing names. Also when memory is full: archiving frees memory.
--
-- KEYS  1 notes (of segments that nothing names)
-- ARGV  1 control, JSON: segment ("<SHA-256> <bytes> <shard of the object>"), since (ms, text)
-- RETURNS  1 | 0; 0: it is noted already
-- NEVER  moves the time of a note.

return redis.call('ZADD', notes, 'NX', control.since, control.segment)
