#!lua
-- slots: sets how many concurrency slots one instance holds of a shared limit, and draws from its meters.
--
-- KEYS  1 limit
-- ARGV  1 control, JSON: instance, slots (wanted in all; 0 gives all back), limit (of all instances; 0 = none),
--         hold (ms that slots live without a further call), draws: a list of
--         {meter, want (below 0 gives back), limit, per}: a bucket; limit units flow back in per ms, or
--         {meter, want, limit, from, till, mark}: a period (ms), in which nothing flows back; mark: see below
-- RETURNS  {slots granted, now, then for each draw: units granted, units left, note}; the note of a bucket: ms until
--          there is a unit again; of a period: 1 for the first call in it with mark, else 0
-- NEVER  grants more than the limit over all living slots, or over a period; goes back to an earlier period, whatever
--        the clock of an instance says.

local control = cjson.decode(ARGV[1])
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local own = 's:' .. control.instance
local live = control.hold

local taken = 0
local meters = {}
local fields = redis.call('HGETALL', KEYS[1])
for n = 1, #fields, 2 do
  local name, value = fields[n], fields[n + 1]
  if string.sub(name, 1, 2) ~= 's:' then
    meters[name] = value
  else
    local held, expiry = string.match(value, '^(%d+)|(%d+)$')
    if tonumber(expiry) <= now then
      redis.call('HDEL', KEYS[1], name)
    elseif name ~= own then
      taken = taken + tonumber(held)
    end
  end
end

local granted = math.max(0, math.min(control.slots, control.limit - taken))
if granted > 0 then
  redis.call('HSET', KEYS[1], own, string.format('%.0f|%.0f', granted, now + control.hold))
else
  redis.call('HDEL', KEYS[1], own)
end

local function draw_bucket(name, draw)
  local left, at = string.match(meters[name] or '', '^(.+)|(%d+)$')
  left, at = tonumber(left) or draw.limit, tonumber(at) or now
  left = math.min(draw.limit, left + math.max(0, now - at) * draw.limit / draw.per)
  local given = math.min(draw.want, math.max(0, math.floor(left)))
  left = math.min(draw.limit, left - given)
  redis.call('HSET', KEYS[1], name, string.format('%.6f|%.0f', left, now))
  live = math.max(live, draw.per)
  local wait = math.max(0, math.ceil((1 - left) * draw.per / draw.limit))
  return given, math.floor(left), wait
end

local function draw_period(name, draw)
  local used, from, marked = string.match(meters[name] or '', '^(%d+)|(%d+)|(%d)$')
  used, from, marked = tonumber(used) or 0, tonumber(from) or 0, marked or '0'
  if from < draw.from then
    used, from, marked = 0, draw.from, '0'
  end
  local given = math.max(-used, math.min(draw.want, math.max(0, draw.limit - used)))
  if draw.want < 0 and from > draw.from then
    given = 0
  end
  local first = draw.mark and marked == '0'
  if first then
    marked = '1'
  end
  used = used + given
  redis.call('HSET', KEYS[1], name, string.format('%.0f|%.0f|%s', used, from, marked))
  live = math.max(live, draw.till - now)
  return given, math.max(0, draw.limit - used), first and 1 or 0
end

local answer = {granted, string.format('%.0f', now)}
for _, draw in ipairs(control.draws) do
  local name = 'm:' .. draw.meter
  local given, left, note
  if draw.per then
    given, left, note = draw_bucket(name, draw)
  else
    given, left, note = draw_period(name, draw)
  end
  table.insert(answer, string.format('%.0f', given))
  table.insert(answer, string.format('%.0f', left))
  table.insert(answer, string.format('%.0f', note))
end
if live > redis.call('PTTL', KEYS[1]) then
  redis.call('PEXPIRE', KEYS[1], string.format('%.0f', live))
end
return answer
