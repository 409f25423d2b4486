#!lua flags=allow-oom
-- begin_forgetting: starts forgetting an owner, unless there is a legal hold: from here on data sealed with its data
-- key is not read any more, and later data of the owner gets a new key.
--
-- KEYS  1 owner_keys   2 tombstones   3 holds
-- ARGV  1 control, JSON: owner, id (of its data key), tombstone (its stored form), is_again (1: it was forgotten
--         before, and a data loss has restored it)
-- RETURNS  "begun" | "held" | "changed"; changed: the owner has another key now
-- NEVER  begins during a hold, or deletes a key: the data sealed with it is still searched first.

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
