#!lua flags=allow-oom
-- keep_owner_key: creates the data key of an owner, or reseals it. Also when memory is full: archiving frees memory.
--
-- KEYS  1 owner_keys
-- ARGV  1 control, JSON: owner (empty: the key is resealed), id, key (its stored form), before (its current stored
--         form, if it is resealed)
-- RETURNS  id of the valid key
-- NEVER  overwrites the key of an owner, or restores a deleted one.

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
