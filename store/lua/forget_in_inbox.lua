#!lua flags=allow-oom
-- forget_in_inbox: drops the beginning of an inbox up to a forgotten event, and removes forgotten approvals from all of
-- its lists.
--
-- KEYS  1 head (of the inbox)   2 stream (of the inbox)   3 views   4 order   5.. lists of questions that ended
-- ARGV  1 control, JSON: upto (sequence of the last event to drop; 0: none), most (entries of one call), actions
-- USES  drop_entries
-- RETURNS  how many entries were dropped; if `most`, there may be more
-- NEVER  moves the head's sequence or chain: a reader that is behind gets a gap.

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
