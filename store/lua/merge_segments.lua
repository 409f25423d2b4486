#!lua flags=allow-oom
-- merge_segments: makes a shard name one segment in place of several merged into it. Rows stay as they are: the number
-- in a row leads to that of the new segment, with the shift of each frame.
--
-- KEYS  1 meta (of the shard)   2 segments   3 notes (of segments that nothing names)   4 merged (numbers)
-- ARGV  1 control, JSON:
--         segment  the new one, "<SHA-256> <bytes> <shard of the object>"
--         old      list of [segment, its number here (text), shift]
--         home     1: it belongs to this shard, and so do the others
--         since    ms, text
-- USES  int_text
-- RETURNS  1 | 0; 0: an old one is not named here with that number, and nothing is written
-- NEVER  names the new one without removing all of the old ones, or touches a row.

for _, one in ipairs(control.old) do
  local name, number = unpack(one)
  if redis.call('ZSCORE', segments, name) ~= number then
    return 0
  end
end
if #control.old > 0 then
  local number = tonumber(redis.call('ZSCORE', segments, control.segment) or '0')
  if number == 0 then
    number = redis.call('HINCRBY', meta, 'segments', 1)
    redis.call('ZADD', segments, int_text(number), control.segment)
  end
  for _, one in ipairs(control.old) do
    local name, old_number, shift = unpack(one)
    redis.call('ZREM', segments, name)
    redis.call('HSET', merged, old_number, int_text(number) .. ' ' .. int_text(shift))
    if control.home == 1 then
      redis.call('ZADD', notes, 'NX', control.since, name)
    end
  end
  redis.call('ZREM', notes, control.segment)
end
if control.home == 1 and redis.call('HGET', meta, 'merge') == control.segment then
  redis.call('HDEL', meta, 'merge')
end
return 1
