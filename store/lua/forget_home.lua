#!lua flags=allow-oom
-- forget_home: removes an owner's data outside of conversations at once: home session, devices and their links, grants,
-- rules, inbox, and their due rows. Connected devices and rule subscribers are notified.
--
-- KEYS  1 head (of the home session)   2 open_set   3 targets   4 inbox_targets   5 due   6 stuck
--       7 link_hints (of the owner)   8 rule_hints (of the home session)   9.. what else goes
-- ARGV  1 control, JSON: session (id), owner (key), epoch (of the home session when it was read; "" if there was none)
-- RETURNS  1 | 0; 0: another home session has begun since, or something is open in it
-- NEVER  removes the lists of approvals that others have asked of the owner, or writes before everything was compared.

local epoch = redis.call('HGET', head, 'epoch') or ''
if epoch ~= control.epoch or redis.call('ZCARD', open_set) > 0 then
  return 0
end
local function end_targets(stream, id)
  for _, name in ipairs(redis.call('HKEYS', stream)) do
    redis.call('ZREM', due, 'target:' .. name)
    redis.call('ZREM', stuck, id .. ' ' .. name)
  end
end
end_targets(targets, control.session)
end_targets(inbox_targets, control.owner)
redis.call('ZREM', due, 'bundle:' .. control.owner)
for place = 9, #KEYS do
  redis.call('UNLINK', KEYS[place])
end
redis.call('UNLINK', head, open_set, targets, inbox_targets)
redis.call('SPUBLISH', link_hints, 'f')
redis.call('SPUBLISH', rule_hints, '')
return 1
