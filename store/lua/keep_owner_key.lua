#!lua flags=allow-oom
-- keep_owner_key: the data key of an owner is made, or sealed anew. Also where memory is full: what leaves makes room.
--
-- KEYS  1 owner_keys
-- ARGV  1 control, JSON: owner (empty: the key is sealed anew), id, key (its stored form), before (the stored form that
--         it has by now, where it is sealed anew)
-- RETURNS  id of the key that counts
-- NEVER  writes over the key of an owner, or brings one back that is gone.

if control.owner == '' then
  if redis.call('HGET', owner_keys, control.id) == control.before then
    redis.call('HSET', owner_keys, control.id, control.key)
  end
  return control.id
end
local known = redis.call('HGET', owner_keys, control.owner)
if known then
  return known
end
redis.call('HSET', owner_keys, control.owner, control.id, control.id, control.key)
return control.id
