#!lua flags=allow-oom
-- ack: stores the acknowledged cursors of devices in a stream; moves forward only, per device and generation.
--
-- KEYS  1 acks (of the stream)   2 head (of the stream)
-- ARGV  1 control, JSON: keep (lifetime of the whole key in ms, text), rows of device, gen (text), cursor (whole text,
--         or false: set the generation only), epoch and seq (text) of the cursor, seen (ms, text); top: epoch and
--         sequence (text) of a stream whose head is archived, or false
-- USES  CURSOR ACK ACK_FORMAT
-- RETURNS  stored | stale_generation | ack_epoch | ack_ahead, one for each row
-- NEVER  checks the chain of a cursor: a reader that resumes from a stored ack has it verified then. Deletes no device
--        that was seen within the lifetime.

local SAMPLE, ROUNDS = 16, 32

-- Most devices are tabs that never reconnect. A new device makes room: a sample is checked, and further ones while many
-- of a sample are deleted, so that only a share of the hash is devices that are gone.
local function forget_unseen(before)
  for _ = 1, ROUNDS do
    local rows = redis.call('HRANDFIELD', acks, SAMPLE, 'WITHVALUES')
    local gone = {}
    for n = 1, #rows, 2 do
      local _, _, seen = string.match(rows[n + 1], ACK)
      if tonumber(seen) <= before then
        gone[#gone + 1] = rows[n]
      end
    end
    if #gone > 0 then
      redis.call('HDEL', acks, unpack(gone))
    end
    if #gone * 4 < SAMPLE then
      return
    end
  end
end

local top, newest
local function store(device, gen, wanted, epoch, seq, seen)
  local generation, cursor = '0', ''
  local row = redis.call('HGET', acks, device)
  if row then
    generation, cursor = string.match(row, ACK)
  end
  if tonumber(gen) < tonumber(generation) then
    return 'stale_generation'
  end
  if wanted then
    top = top or redis.call('HMGET', head, 'epoch', 'seq')
    if not top[1] and control.top then
      top = control.top
    end
    if top[1] ~= epoch then
      return 'ack_epoch'
    end
    local last = tonumber(top[2] or '0')
    if tonumber(seq) > last then
      return 'ack_ahead'
    end
    local held, sequence = string.match(cursor, CURSOR)
    -- A stored cursor beyond the top belongs to a lost tail: it is replaced, like one of another epoch.
    local holds = held == epoch and tonumber(sequence) <= last
    if not holds or tonumber(sequence) < tonumber(seq) then
      cursor = wanted
    end
  end
  redis.call('HSET', acks, device, string.format(ACK_FORMAT, gen, cursor, seen))
  if not row then
    newest = math.max(newest or 0, tonumber(seen))
  end
  return 'stored'
end

local answer, stored = {}, false
for place, row in ipairs(control.rows) do
  answer[place] = store(unpack(row))
  stored = stored or answer[place] == 'stored'
end
if stored then
  redis.call('PEXPIRE', acks, control.keep)
  if newest then
    forget_unseen(newest - tonumber(control.keep))
  end
end
return answer
