#!lua flags=allow-oom
-- begin_forgetting: from here on what an owner has is gone, unless somebody holds it: what a data key has sealed is not
-- read any more, and what the owner has next gets a key of its own.
--
-- KEYS  1 owner_keys   2 tombstones   3 holds
-- ARGV  1 control, JSON: owner, id (of its data key), tombstone (its stored form), is_again (1: it was forgotten before,
--         and a loss has brought it back)
-- RETURNS  "begun" | "held" | "changed"; changed: the owner has another key by now
-- NEVER  begins where there is a hold, or takes a key away: what it has sealed is looked through first.

if control.is_again == 0 then
  if redis.call('HEXISTS', holds, control.owner) == 1 then
    return 'held'
  end
  if redis.call('HGET', owner_keys, control.owner) ~= control.id then
    return 'changed'
  end
end
redis.call('HSET', tombstones, control.id, control.tombstone, control.owner, control.id)
if redis.call('HGET', owner_keys, control.owner) == control.id then
  redis.call('HDEL', owner_keys, control.owner)
end
return 'begun'
