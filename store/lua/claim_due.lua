#!lua flags=allow-oom
-- claim_due: takes rows whose time has come and hides each for the visibility time.
--
-- KEYS  1 due
-- ARGV  1 control, JSON: limit, visibility (ms), first (prefix of rows that are taken beyond the limit as well),
--         back (ms, the visibility of those), hold (prefix of rows to leave alone, or "")
-- RETURNS  {now, score of the next row or "", member, token, member, token, ...}; the token is the new score
-- NEVER  touches an entity: its keys are unknown before the claim.

local SCAN_BEYOND = 128
local control = cjson.decode(ARGV[1])
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local now_text = string.format('%.0f', now)
local hidden = string.format('%.0f', now + control.visibility)
local back = string.format('%.0f', now + control.back)
local rows = redis.call('ZRANGE', KEYS[1], '-inf', now_text, 'BYSCORE', 'LIMIT', 0, control.limit + SCAN_BEYOND)
local reply = {now_text, ''}
local taken = 0
for _, member in ipairs(rows) do
  local held = control.hold ~= '' and string.sub(member, 1, #control.hold) == control.hold
  local first = string.sub(member, 1, #control.first) == control.first
  if not held and (first or taken < control.limit) then
    local token = first and back or hidden
    redis.call('ZADD', KEYS[1], token, member)
    reply[#reply + 1] = member
    reply[#reply + 1] = token
    if not first then
      taken = taken + 1
    end
  end
end
local next = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
reply[2] = next[2] or ''
return reply
