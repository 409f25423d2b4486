#!lua flags=allow-oom
-- ack: stores how far a device has come in a stream; moves forward only, per device and generation.
--
-- KEYS  1 acks of the stream   2 stream head
-- ARGV  1 control, JSON: device, gen (text), cursor (whole text, or false: set the generation only),
--         epoch and seq (text) of the cursor, seen (ms, text), keep (lifetime of the whole key in ms, text)
-- RETURNS  stored | stale_generation | ack_epoch | ack_ahead
-- NEVER  checks the chain of a cursor: whoever resumes from a stored ack has it verified then.

local control = cjson.decode(ARGV[1])
local generation, cursor = '0', ''
local row = redis.call('HGET', KEYS[1], control.device)
if row then
  generation, cursor = string.match(row, '^(%d+)|([^|]*)|')
end
if tonumber(control.gen) < tonumber(generation) then
  return 'stale_generation'
end
if control.cursor then
  local head = redis.call('HMGET', KEYS[2], 'epoch', 'seq')
  if head[1] ~= control.epoch then
    return 'ack_epoch'
  end
  local top = tonumber(head[2] or '0')
  if tonumber(control.seq) > top then
    return 'ack_ahead'
  end
  local epoch, sequence = string.match(cursor, '^(%x+)%.(%d+)%.')
  -- A stored cursor beyond the top is of a lost tail: it is replaced, like one of another epoch.
  local holds = epoch == head[1] and tonumber(sequence) <= top
  if not holds or tonumber(sequence) < tonumber(control.seq) then
    cursor = control.cursor
  end
end
redis.call('HSET', KEYS[1], control.device, control.gen .. '|' .. cursor .. '|' .. control.seen)
redis.call('PEXPIRE', KEYS[1], control.keep)
return 'stored'
