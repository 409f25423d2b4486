#!lua
-- hold_owner: nothing of an owner may be forgotten from here on.
--
-- KEYS  1 holds   2 tombstones
-- ARGV  1 control, JSON: owner, hold (its stored form)
-- RETURNS  "held" | "forgetting"; forgetting: it is too late, its tombstone stands
-- NEVER  writes over a hold.

if redis.call('HEXISTS', tombstones, control.owner) == 1 then
  return 'forgetting'
end
redis.call('HSETNX', holds, control.owner, control.hold)
return 'held'
