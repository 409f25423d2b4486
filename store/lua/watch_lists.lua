#!lua flags=allow-oom
-- watch_lists: records in a shard that the lists of a tenant are followed, or no longer followed.
--
-- KEYS  1 meta (of the shard)
-- ARGV  1 control, JSON: tenant (its key), epoch (of the stream of its changes), is_over (the stream has no followers)
-- RETURNS  1 | 0: another stream of the tenant has begun since, and nothing was changed
-- NEVER  removes the record of a stream that began after the one that ended.

local kept = {}
for tenant, epoch in string.gmatch(redis.call('HGET', meta, 'watched') or '', '(%S+)=(%S+)') do
  if tenant ~= control.tenant then
    kept[#kept + 1] = tenant .. '=' .. epoch
  elseif control.is_over and epoch ~= control.epoch then
    return 0
  end
end
if not control.is_over then
  kept[#kept + 1] = control.tenant .. '=' .. control.epoch
end
if #kept > 0 then
  redis.call('HSET', meta, 'watched', table.concat(kept, ' '))
else
  redis.call('HDEL', meta, 'watched')
end
return 1
