#!lua flags=allow-oom
-- claim_due: claims rows that are due and hides each for the visibility time. Lease rows go first, and do not count
-- against the limit: however many other rows are older, the runs of a dead instance do not wait for them.
--
-- KEYS  1 due   2 lessees (instances that have a lease here)
-- ARGV  1 control, JSON: limit, visibility (ms), first (prefix of lease rows), back (ms, their visibility),
--         skip_prefix (of rows to skip, or "")
-- USES  server_ms int_text
-- RETURNS  {now, score of the next row or "", member, token, member, token, ...}; the token is the new score
-- NEVER  touches an entity: its keys are unknown before the claim.

local SCAN_BEYOND = 128
local now = server_ms()
local now_text = int_text(now)
local hidden = int_text(now + control.visibility)
local back = int_text(now + control.back)
local reply = {now_text, ''}
local function claim(member, token)
  redis.call('ZADD', due, token, member)
  reply[#reply + 1] = member
  reply[#reply + 1] = token
end

if control.skip_prefix ~= control.first then
  for _, instance in ipairs(redis.call('SMEMBERS', lessees)) do
    local member = control.first .. instance
    local at = redis.call('ZSCORE', due, member)
    if at and tonumber(at) <= now then
      claim(member, back)
    end
  end
end
local rows = redis.call('ZRANGE', due, '-inf', now_text, 'BYSCORE', 'LIMIT', 0, control.limit + SCAN_BEYOND)
local taken = 0
for _, member in ipairs(rows) do
  local skipped = control.skip_prefix ~= '' and string.sub(member, 1, #control.skip_prefix) == control.skip_prefix
  local first = string.sub(member, 1, #control.first) == control.first
  if not skipped and (first or taken < control.limit) then
    -- The set has no lease that an instance of an older version opened.
    claim(member, first and back or hidden)
    if not first then
      taken = taken + 1
    end
  end
end
local next = redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')
reply[2] = next[2] or ''
return reply
