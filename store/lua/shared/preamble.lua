-- Functions and patterns shared by several scripts. A script names those it uses in its header (USES). They are put
-- before it when it is loaded, together with their dependencies. Each function costs a script that has it some 80 ns,
-- so patterns are constants.

-- The server's clock in milliseconds.
local function server_ms()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- A whole number as decimal text: `..` keeps 14 digits, and milliseconds and sequences may have more.
local function int_text(number)
  return string.format('%d', number)
end

-- Wakes a resting lease, which had no end while its set was empty: from now on it ends after `rest` ms. The end never
-- moves back, which the instance would take for a lost write: after the clock was set back it is the stored one, until
-- the next extension.
local function wake_lease(own, due, rest, now)
  if rest and redis.call('HDEL', own, 'rest') == 1 then
    local stored = tonumber(redis.call('HGET', own, 'until') or '0')
    local ends = int_text(math.max(now + tonumber(rest), stored))
    redis.call('HSET', own, 'until', ends)
    redis.call('ZADD', due, ends, string.match(own, 'own:.+$'))
  end
end

-- Epoch and sequence of a cursor "<epoch>.<sequence>.<chain>"; an empty one does not match.
local CURSOR = '^(%x+)%.(%d+)%.'

-- A stored ack: generation, cursor, seen.
local ACK = '^(%d+)|([^|]*)|(%d+)$'

local ACK_FORMAT = '%s|%s|%s'

-- A stored webhook target: state, filter, tries, cursor, since, refusals, reason; the reason may be any text.
local TARGET = '^(%a+)|([^|]*)|(%d+)|([^|]*)|(%d+)|(%d+)|(.*)$'

local TARGET_FORMAT = '%s|%s|%s|%s|%s|%s|%s'

-- A target whose deliveries succeed: filter, cursor.
local LIVE_TARGET_FORMAT = 'live|%s|0|%s|0|0|'

-- Makes the live targets of a stream due that want all events, or events with one of these facade ids; returns how many
-- were not due before.
local function wake_targets(targets, due, now, facades)
  local woken = 0
  local rows = redis.call('HGETALL', targets)
  for n = 1, #rows, 2 do
    local state, filter = string.match(rows[n + 1], TARGET)
    local wants = state == 'live' and filter == '*'
    if state == 'live' and not wants then
      for _, facade in ipairs(facades) do
        wants = wants or filter == facade
      end
    end
    if wants then
      woken = woken + redis.call('ZADD', due, 'NX', now, 'target:' .. rows[n])
    end
  end
  return woken
end

-- Whether a session is archived (store/archive/locator.py). This is the only key that a script computes itself: it is
-- in the shard of `meta`, and only the script knows whether an append creates a stream.
local function is_archived(meta, session)
  local name = redis.sha1hex(session)
  local first, second, third = string.match(name, '^(%x%x%x%x%x%x%x%x)(%x%x%x%x)(%x%x)')
  local bucket = string.sub(meta, 1, 5) .. 'al:' .. string.format('%02x', tonumber(third, 16) % 128)
  return redis.call('HGET', bucket, struct.pack('>I4I2', tonumber(first, 16), tonumber(second, 16))) ~= false
end

local HINT_LIMIT = 8192

-- Adds events, at least one, to a stream as one entry under the last sequence, extends the chain by each, and writes
-- the head; publishes nothing yet. found: epoch, seq, chain and bytes of the head; mint: epoch of a new stream; ids:
-- those of the events; packed: all of them as stored, separated by \31 (core/packed_events.py); at: their time, or nil.
-- Returns the sequences as text, epoch, the sequence and chain before, the chain, and the hint: with the events if they
-- are small and the stream has a subscriber here: most streams have none, and those at a former primary are not known.
local function write_events(head, stream, hints, found, mint, ids, packed, at)
  local epoch, top, chain, bytes = found[1], tonumber(found[2] or '0'), found[3], tonumber(found[4] or '0')
  if not epoch then
    epoch, chain = mint, string.sub(redis.sha1hex(mint), 1, 8)
  end
  local before, previous, sequences = top, chain, {}
  -- Checked before the first write: a server that does not allow it refuses the whole append.
  local is_followed = redis.call('PUBSUB', 'SHARDNUMSUB', hints)[2] > 0
  for place, id in ipairs(ids) do
    top = top + 1
    sequences[place] = int_text(top)
    chain = string.sub(redis.sha1hex(chain .. id), 1, 8)
  end
  local last, size, time = sequences[#sequences], int_text(bytes + #packed), at and {'at', at} or {}
  redis.call('XADD', stream, last .. '-0', 'p', previous, 'd', packed)
  if not found[1] then
    redis.call('HSET', head, 'epoch', epoch, 'first', '1', 'seq', last, 'chain', chain, 'bytes', size, unpack(time))
  else
    redis.call('HSET', head, 'seq', last, 'chain', chain, 'bytes', size, unpack(time))
  end
  local hint = 'e ' .. sequences[1] .. '-' .. last .. '.' .. previous .. '.' .. chain .. '\n'
  if is_followed and #hint + #packed < HINT_LIMIT then
    hint = hint .. packed .. '\31'
  end
  return sequences, epoch, before, previous, chain, hint
end

-- Drops entries from the beginning of a stream, at most `most`, while `goes(sequence of the last event, stored events,
-- bytes left)` returns true; bytes: those of the head. Returns how many were dropped.
local function drop_entries(head, stream, bytes, most, goes)
  local dropped, upto = 0, nil
  for _, entry in ipairs(redis.call('XRANGE', stream, '-', '+', 'COUNT', most)) do
    local members, packed = entry[2], ''
    for n = 1, #members, 2 do
      packed = members[n] == 'd' and members[n + 1] or packed
    end
    local last = tonumber(string.match(entry[1], '^%d+'))
    if not goes(last, packed, bytes) then
      break
    end
    dropped, upto, bytes = dropped + 1, last, math.max(0, bytes - #packed)
  end
  if upto then
    local first = int_text(upto + 1)
    redis.call('XTRIM', stream, 'MINID', first .. '-0')
    if redis.call('XLEN', stream) == 0 then
      redis.call('UNLINK', stream)
    end
    redis.call('HSET', head, 'first', first, 'bytes', int_text(bytes))
  end
  return dropped
end
