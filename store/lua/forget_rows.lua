#!lua flags=allow-oom
-- forget_rows: rows that say where a frame stands are taken away.
--
-- KEYS  1.. buckets of rows, by index
-- ARGV  1 control, JSON: row (index into ARGV of what each row says), rows (list of [key, index of its
--         field])
--       2.. byte strings
-- RETURNS  how many rows went
-- NEVER  takes a row that says something else: the session has left once more, or another id has the same hash.

local gone = 0
for _, row in ipairs(control.rows) do
  if redis.call('HGET', KEYS[row[1]], ARGV[row[2]]) == ARGV[control.row] then
    gone = gone + redis.call('HDEL', KEYS[row[1]], ARGV[row[2]])
  end
end
return gone
