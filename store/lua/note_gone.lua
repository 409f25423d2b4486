#!lua flags=allow-oom
-- note_gone: records sessions about to be forgotten: a recent writer that misses one does not report a data loss.
--
-- KEYS  1.. a key for each session, by index
-- ARGV  1 control, JSON: keep (lifetime of the records in ms)
-- RETURNS  the number of sessions
-- NEVER  touches a session.

for _, key in ipairs(KEYS) do
  redis.call('SET', key, '1', 'PX', control.keep)
end
return #KEYS
