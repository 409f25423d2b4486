#!lua
-- slots: sets how many concurrency slots one instance holds of a shared limit, and draws from its meters.
--
-- KEYS  1 limits (of one name)
-- ARGV  1 control, JSON: instance, slots (wanted in total; 0 returns all), limit (of all instances; 0 = none),
--         hold (lifetime of slots in ms without a further call), draws: a list of
--         {meter, want (negative returns units), limit, per}: a bucket; limit units flow back in per ms, or
--         {meter, want, limit, from, till, mark}: a period (ms), in which nothing flows back; mark: see below
-- USES  server_ms int_text
-- RETURNS  {slots granted, now, then for each draw: units granted, units left, note}; the note of a bucket: ms until
--          a unit is available again; of a period: 1 for the first call in it with mark, else 0
-- NEVER  grants more than the limit over all living slots, or over a period; goes back to an earlier period, whatever
--        the clock of an instance.

local now = server_ms()
local own = 's:' .. control.instance
local live = control.hold

local taken = 0
local meters = {}
local fields = redis.call('HGETALL', limits)
for n = 1, #fields, 2 do
  local name, value = fields[n], fields[n + 1]
  if string.sub(name, 1, 2) ~= 's:' then
    meters[name] = value
  else
    local held, expiry = string.match(value, '^(%d+)|(%d+)$')
    if tonumber(expiry) <= now then
      redis.call('HDEL', limits, name)
    elseif name ~= own then
      taken = taken + tonumber(held)
    end
  end
end

local granted = math.max(0, math.min(control.slots, control.limit - taken))
if granted > 0 then
  redis.call('HSET', limits, own, string.format('%.0f|%.0f', granted, now + control.hold))
else
  redis.call('HDEL', limits, own)
end

local function draw_bucket(name, draw)
  local left, at = string.match(meters[name] or '', '^(.+)|(%d+)$')
  left, at = tonumber(left) or draw.limit, tonumber(at) or now
  left = math.min(draw.limit, left + math.max(0, now - at) * draw.limit / draw.per)
  local given = math.min(draw.want, math.max(0, math.floor(left)))
  left = math.min(draw.limit, left - given)
  redis.call('HSET', limits, name, string.format('%.6f|%.0f', left, now))
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
  redis.call('HSET', limits, name, string.format('%.0f|%.0f|%s', used, from, marked))
  live = math.max(live, draw.till - now)
  return given, math.max(0, draw.limit - used), first and 1 or 0
end

local answer = {granted, int_text(now)}
for _, draw in ipairs(control.draws) do
  local name = 'm:' .. draw.meter
  local given, left, note
  if draw.per then
    given, left, note = draw_bucket(name, draw)
  else
    given, left, note = draw_period(name, draw)
  end
  table.insert(answer, int_text(given))
  table.insert(answer, int_text(left))
  table.insert(answer, int_text(note))
end
if live > redis.call('PTTL', limits) then
  redis.call('PEXPIRE', limits, int_text(live))
end
return answer
