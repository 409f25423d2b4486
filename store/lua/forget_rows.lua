#!lua flags=allow-oom
-- forget_rows: deletes archive rows.
--
-- KEYS  1.. buckets of rows, by index
-- ARGV  1 control, JSON: row (index into ARGV of the value of each row), rows (list of [key, index of its
--         field])
--       2.. byte strings
-- RETURNS  how many rows were deleted
-- NEVER  deletes a row with another value: the session was archived again, or another id has the same hash.

local gone = 0
for _, row in ipairs(control.rows) do
  if redis.call('HGET', KEYS[row[1]], ARGV[row[2]]) == ARGV[control.row] then
    gone = gone + redis.call('HDEL', KEYS[row[1]], ARGV[row[2]])
  end
end
return gone
