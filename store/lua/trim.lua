#!lua flags=allow-oom
-- trim: removes the archived prefix of a session's stream, after checking again that nothing needs it.
--
-- KEYS  1 session head   2 session stream   3 open set   4 acks   5 targets
-- ARGV  1 control, JSON: upto (last sequence to remove, text), address and hash of the archive object,
--         archived (bytes of what it holds, text), window (ms for which a device's ack holds the stream, and after
--         which it is forgotten), tab_window (ms for which that of one tab does, a stored name with '#' in it),
--         cap_entries, cap_bytes (past either, the older half goes whatever holds it)
-- RETURNS  ok first | held what sequence | unarchived | nothing
-- NEVER  removes what was not archived first, moves the head's sequence or chain, or goes past the top.

local control = cjson.decode(ARGV[1])
if control.address == '' or control.hash == '' then
  return {'unarchived'}
end
local head = redis.call('HMGET', KEYS[1], 'seq', 'first', 'bytes')
local upto, top, first = tonumber(control.upto), tonumber(head[1] or '0'), tonumber(head[2] or '1')
if upto < first or upto > top then
  return {'nothing'}
end

local bytes = tonumber(head[3] or '0')
local kept = top - first + 1
local past_cap = kept > control.cap_entries or bytes > control.cap_bytes
local free_upto = past_cap and first + math.floor(kept / 2) - 1 or first - 1

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local forgotten = {}
local function holder()
  local open = redis.call('ZRANGE', KEYS[3], 0, 0, 'WITHSCORES')
  if open[1] and tonumber(open[2]) <= upto then
    return 'open', open[2]
  end
  local acks = redis.call('HGETALL', KEYS[4])
  for n = 1, #acks, 2 do
    local cursor, seen = string.match(acks[n + 1], '^%d+|([^|]*)|(%d+)$')
    local sequence = string.match(cursor, '^%x+%.(%d+)%.')
    local unseen = now - tonumber(seen)
    local holds = string.find(acks[n], '#', 1, true) and control.tab_window or control.window
    if unseen >= control.window then
      forgotten[#forgotten + 1] = acks[n]
    elseif unseen < holds and sequence and tonumber(sequence) < upto then
      return 'ack', sequence
    end
  end
  local targets = redis.call('HGETALL', KEYS[5])
  for n = 1, #targets, 2 do
    local state, cursor = string.match(targets[n + 1], '^(%a+)|[^|]*|%d+|([^|]*)|')
    local sequence = string.match(cursor, '^%x+%.(%d+)%.')
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
  redis.call('HDEL', KEYS[4], device)
end
local new_first = string.format('%.0f', upto + 1)
if upto == top then
  redis.call('UNLINK', KEYS[2])
else
  redis.call('XTRIM', KEYS[2], 'MINID', new_first .. '-0')
end
redis.call('HSET', KEYS[1], 'first', new_first, 'archive', control.address .. ' ' .. control.hash,
  'bytes', string.format('%.0f', math.max(0, bytes - tonumber(control.archived))))
return {'ok', new_first}
