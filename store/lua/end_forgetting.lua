#!lua flags=allow-oom
-- end_forgetting: nothing is left of what an owner had; its data key goes, and its name.
--
-- KEYS  1 owner_keys   2 tombstones
-- ARGV  1 control, JSON: owner (empty where nobody knows it any more), id (of the data key), tombstone (its stored form,
--         without the owner)
-- RETURNS  1
-- NEVER  takes the name of an owner out of a later tombstone.

redis.call('HDEL', owner_keys, control.id)
redis.call('HSET', tombstones, control.id, control.tombstone)
if redis.call('HGET', tombstones, control.owner) == control.id then
  redis.call('HDEL', tombstones, control.owner)
end
return 1
