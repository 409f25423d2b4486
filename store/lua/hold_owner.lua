#!lua
-- hold_owner: sets a legal hold: nothing of an owner may be forgotten from here on.
--
-- KEYS  1 holds   2 tombstones
-- ARGV  1 control, JSON: owner, hold (its stored form)
-- RETURNS  "held" | "forgetting"; forgetting: too late, it has a tombstone
-- NEVER  overwrites a hold.

if redis.call('HEXISTS', tombstones, control.owner) == 1 then
  return 'forgetting'
end
redis.call('HSETNX', holds, control.owner, control.hold)
return 'held'
