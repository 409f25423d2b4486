#!lua flags=allow-oom
-- note_gone: sessions are about to be forgotten. Whoever wrote to one a moment ago, and misses it, has lost nothing.
--
-- KEYS  1.. a key for each session, by index
-- ARGV  1 control, JSON: keep (ms that it is known)
-- RETURNS  how many sessions that were
-- NEVER  touches a session.

for _, key in ipairs(KEYS) do
  redis.call('SET', key, '1', 'PX', control.keep)
end
return #KEYS
