#!lua flags=allow-oom
-- merge_segments: a shard names one segment in place of several whose frames it has. Rows stay as they are: a number that
-- they name leads to that of the one segment, and says how much further on each frame stands.
--
-- KEYS  1 meta (of the shard)   2 segments   3 notes (of segments that nothing names)   4 merged (numbers)
-- ARGV  1 control, JSON:
--         segment  the one, "<SHA-256> <bytes> <shard where it stands>"
--         old      list of [segment, its number here (text), shift]
--         home     1: it stands in this shard, and so do the others
--         since    ms, text
-- USES  int_text
-- RETURNS  1 | 0; 0: one of the others is not named here by that number, and nothing is written
-- NEVER  names the one without taking all of the others away, or touches a row.

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
