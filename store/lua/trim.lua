#!lua flags=allow-oom
-- trim: removes the archived prefix of a session's stream, after checking again that it is not needed. The events of
-- one append are removed together: if `upto` is in the middle of one, only the appends before it are removed.
--
-- KEYS  1 head (of the session)   2 stream (of the session)   3 open_set   4 acks   5 targets
-- ARGV  1 control, JSON: upto (last sequence to remove, text), address and hash of the archive object,
--         archived (bytes of its entries, text), window (ms for which a device's ack holds the stream, and after
--         which it is deleted), tab_window (ms for which that of one tab does, a stored name with '#' in it),
--         cap_entries, cap_bytes (past either, the older half is removed even if it is needed)
-- USES  server_ms int_text CURSOR ACK TARGET
-- RETURNS  ok first | held what sequence | unarchived | nothing
-- NEVER  removes entries that are not archived, moves the head's sequence or chain, or goes past the top.

if control.address == '' or control.hash == '' then
  return {'unarchived'}
end
local found = redis.call('HMGET', head, 'seq', 'first', 'bytes')
local upto, top, first = tonumber(control.upto), tonumber(found[1] or '0'), tonumber(found[2] or '1')
if upto > top then
  return {'nothing'}
end
local whole = redis.call('XREVRANGE', stream, int_text(upto) .. '-0', '-', 'COUNT', 1)[1]
upto = whole and tonumber(string.match(whole[1], '^%d+')) or 0
if upto < first then
  return {'nothing'}
end

local bytes = tonumber(found[3] or '0')
local kept = top - first + 1
local past_cap = kept > control.cap_entries or bytes > control.cap_bytes
local free_upto = past_cap and first + math.floor(kept / 2) - 1 or first - 1

local now = server_ms()
local forgotten = {}
local function holder()
  local open = redis.call('ZRANGE', open_set, 0, 0, 'WITHSCORES')
  if open[1] and tonumber(open[2]) <= upto then
    return 'open', open[2]
  end
  local devices = redis.call('HGETALL', acks)
  for n = 1, #devices, 2 do
    local _, cursor, seen = string.match(devices[n + 1], ACK)
    local _, sequence = string.match(cursor, CURSOR)
    local unseen = now - tonumber(seen)
    local holds = string.find(devices[n], '#', 1, true) and control.tab_window or control.window
    if unseen >= control.window then
      forgotten[#forgotten + 1] = devices[n]
    elseif unseen < holds and sequence and tonumber(sequence) < upto then
      return 'ack', sequence
    end
  end
  local receivers = redis.call('HGETALL', targets)
  for n = 2, #receivers, 2 do
    local state, _, _, cursor = string.match(receivers[n], TARGET)
    local _, sequence = string.match(cursor, CURSOR)
    if state ~= 'dead' and sequence and tonumber(sequence) < upto then
      return 'target', sequence
    end
  end
  return nil
end
if upto > free_upto then
  local what, sequence = holder()
  if what then
    return {'held', what, sequence}
  end
end

for _, device in ipairs(forgotten) do
  redis.call('HDEL', acks, device)
end
local new_first = int_text(upto + 1)
if upto == top then
  redis.call('UNLINK', stream)
else
  redis.call('XTRIM', stream, 'MINID', new_first .. '-0')
end
redis.call('HSET', head, 'first', new_first, 'archive', control.address .. ' ' .. control.hash,
  'bytes', int_text(math.max(0, bytes - tonumber(control.archived))))
return {'ok', new_first}
