#!lua flags=allow-oom
-- trim_inbox: takes what is old off the beginning of an inbox, and forgets the acks of devices that are long away.
--
-- KEYS  1 head (of the inbox)   2 stream (of the inbox)   3 acks
-- ARGV  1 control, JSON: before (RFC 3339, as events have it), unseen (ms, text: acks of devices that were not seen
--         since are forgotten), most (entries of one call)
-- USES  drop_entries ACK
-- RETURNS  how many entries went; as many as `most`: there may be more
-- NEVER  moves the head's sequence or chain, or touches what is pending: that stands beside the stream.

local dropped = drop_entries(head, stream, tonumber(redis.call('HGET', head, 'bytes') or '0'), control.most,
  function(_, packed)
    -- The time of an event stands before what anybody has written in it. An entry without one is damaged, and would
    -- hold all that comes behind it.
    local at = string.match(packed, '"timestamp":"([^"]*)"')
    return at == nil or at < control.before
  end)
local devices = redis.call('HGETALL', acks)
for n = 1, #devices, 2 do
  local _, _, seen = string.match(devices[n + 1], ACK)
  if seen and tonumber(seen) < tonumber(control.unseen) then
    redis.call('HDEL', acks, devices[n])
  end
end
return dropped
