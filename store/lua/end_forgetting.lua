#!lua flags=allow-oom
-- end_forgetting: completes forgetting an owner: deletes its data key, and its name.
--
-- KEYS  1 owner_keys   2 tombstones
-- ARGV  1 control, JSON: owner (empty if it is not known any more), id (of the data key), tombstone (its stored form,
--         without the owner)
-- RETURNS  1
-- NEVER  removes the name of an owner from a later tombstone.

redis.call('HDEL', owner_keys, control.id)
redis.call('HSET', tombstones, control.id, control.tombstone)
if redis.call('HGET', tombstones, control.owner) == control.id then
  redis.call('HDEL', tombstones, control.owner)
end
return 1
