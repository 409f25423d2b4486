#!lua flags=allow-oom
-- settle_bundle: removes held pushes that one bundle has delivered; those held meanwhile wait for the next.
--
-- KEYS  1 held (pushes that wait for a bundle)   2 due
-- ARGV  1 control, JSON: row, token (claim of the row), last (whether the bundle is done), told (members that were
--         delivered)
-- RETURNS  rest | settled
-- NEVER  drops a row that another instance has claimed again, or one with held pushes.

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
