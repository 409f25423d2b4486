#!lua flags=allow-oom
-- trim_inbox: drops old entries from the beginning of an inbox, and acks of devices that are gone for long.
--
-- KEYS  1 head (of the inbox)   2 stream (of the inbox)   3 acks
-- ARGV  1 control, JSON: before (RFC 3339, as in events), unseen (ms, text: acks of devices not seen since are
--         deleted), most (entries of one call)
-- USES  drop_entries ACK
-- RETURNS  how many entries were dropped; if `most`, there may be more
-- NEVER  moves the head's sequence or chain, or touches pending approvals, which are stored outside of the stream.

local dropped = drop_entries(head, stream, tonumber(redis.call('HGET', head, 'bytes') or '0'), control.most,
  function(_, packed)
    -- The timestamp precedes any user-written text in an event. An entry without one is damaged, and would
    -- block the removal of all later ones.
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
