#!lua flags=allow-oom
-- settle_bundle: questions that were held have been told of in one bundle; what came up meanwhile waits for the next.
--
-- KEYS  1 what is held   2 due
-- ARGV  1 control, JSON: row, token (claim of the row), last (whether the bundle is done), told (members that are held
--         no more)
-- RETURNS  rest | settled
-- NEVER  drops a row that was claimed again by somebody else, or one that something is still held for.

local control = cjson.decode(ARGV[1])
for _, member in ipairs(control.told) do
  redis.call('ZREM', KEYS[1], member)
end
if redis.call('ZSCORE', KEYS[2], control.row) ~= control.token or not control.last then
  return 'rest'
end
local next = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2]
if next then
  redis.call('ZADD', KEYS[2], next, control.row)
  return 'rest'
end
redis.call('ZREM', KEYS[2], control.row)
return 'settled'
