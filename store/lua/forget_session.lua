#!lua flags=allow-oom
-- forget_session: removes everything that the engine has of a session, with its pending webhook deliveries.
--
-- KEYS  1 head (of the session)   2 open_set   3 targets   4 due   5 stuck   6.. what else goes, by index
-- ARGV  1 control, JSON: session (id), sequence (text; that of the head when it was read), keys (list of indexes)
-- RETURNS  1 | 0; 0: it is gone, has changed since it was read, or something is open in it
-- NEVER  writes before everything was compared.

if redis.call('HGET', head, 'seq') ~= control.sequence or redis.call('ZCARD', open_set) > 0 then
  return 0
end
for _, name in ipairs(redis.call('HKEYS', targets)) do
  redis.call('ZREM', due, 'target:' .. name)
  redis.call('ZREM', stuck, control.session .. ' ' .. name)
end
for _, key in ipairs(control.keys) do
  redis.call('UNLINK', KEYS[key])
end
redis.call('UNLINK', head, open_set, targets)
return 1
