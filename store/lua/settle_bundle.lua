#!lua flags=allow-oom
-- settle_bundle: questions that were held have been told of in one bundle; what came up meanwhile waits for the next.
--
-- KEYS  1 held (pushes that wait for a bundle)   2 due
-- ARGV  1 control, JSON: row, token (claim of the row), last (whether the bundle is done), told (members that are held
--         no more)
-- RETURNS  rest | settled
-- NEVER  drops a row that was claimed again by somebody else, or one that something is still held for.

for _, member in ipairs(control.told) do
  redis.call('ZREM', held, member)
end
if redis.call('ZSCORE', due, control.row) ~= control.token or not control.last then
  return 'rest'
end
local next = redis.call('ZRANGE', held, 0, 0, 'WITHSCORES')[2]
if next then
  redis.call('ZADD', due, next, control.row)
  return 'rest'
end
redis.call('ZREM', due, control.row)
return 'settled'
