#!lua flags=allow-oom
-- forget_in_inbox: the beginning of an inbox goes up to what is forgotten, and questions that are forgotten go from all
-- of its lists.
--
-- KEYS  1 head (of the inbox)   2 stream (of the inbox)   3 views   4 order   5.. lists of questions that ended
-- ARGV  1 control, JSON: upto (sequence of the last event that goes; 0: none), most (entries of one call), actions
-- USES  drop_entries
-- RETURNS  how many entries went; as many as `most`: there may be more
-- NEVER  moves the head's sequence or chain: whoever is behind gets a gap.

for _, action in ipairs(control.actions) do
  redis.call('HDEL', views, action)
  redis.call('ZREM', order, action)
  for n = 5, #KEYS do
    redis.call('ZREM', KEYS[n], action)
  end
end
if control.upto == 0 then
  return 0
end
return drop_entries(head, stream, tonumber(redis.call('HGET', head, 'bytes') or '0'), control.most,
  function(last)
    return last <= control.upto
  end)
