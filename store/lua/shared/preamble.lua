-- Functions and forms that several scripts share. A script names those that it uses in its header (USES). They are put
-- before it when it is loaded, together with those that they use themselves. Each function costs a script that has it
-- some 80 ns: what is no more than a form is a pattern.

-- The server's clock in milliseconds.
local function server_ms()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- A whole number as decimal text: `..` keeps 14 digits, and milliseconds and sequences may have more.
local function int_text(number)
  return string.format('%d', number)
end

-- A lease that rested has no end until something enters its set: from now on it ends after `rest` ms, if it rested.
local function wake_lease(own, due, rest, now)
  if rest and redis.call('HDEL', own, 'rest') == 1 then
    local ends = int_text(now + tonumber(rest))
    redis.call('HSET', own, 'until', ends)
    redis.call('ZADD', due, ends, string.match(own, 'own:.+$'))
  end
end

-- Epoch and sequence of a cursor "<epoch>.<sequence>.<chain>"; an empty one does not match.
local CURSOR = '^(%x+)%.(%d+)%.'

-- A stored ack: generation, cursor, seen.
local ACK = '^(%d+)|([^|]*)|(%d+)$'

local ACK_FORMAT = '%s|%s|%s'

-- A stored webhook target: state, filter, tries, cursor, since, refusals, reason; the reason may hold any text.
local TARGET = '^(%a+)|([^|]*)|(%d+)|([^|]*)|(%d+)|(%d+)|(.*)$'

local TARGET_FORMAT = '%s|%s|%s|%s|%s|%s|%s'

-- A target whose deliveries succeed: filter, cursor.
local LIVE_TARGET_FORMAT = 'live|%s|0|%s|0|0|'

-- Makes the live targets of a stream due that want one of these events, flat as in append; returns how many were not due
-- before.
local function wake_targets(targets, due, now, events)
  local woken = 0
  local rows = redis.call('HGETALL', targets)
  for n = 1, #rows, 2 do
    local state, filter = string.match(rows[n + 1], TARGET)
    if state == 'live' then
      for facade = 4, #events, 4 do
        if filter == '*' or filter == events[facade] then
          woken = woken + redis.call('ZADD', due, 'NX', now, 'target:' .. rows[n])
          break
        end
      end
    end
  end
  return woken
end

local HINT_LIMIT = 8192

-- Adds events, at least one, to a stream, with dense ids and the chain, and writes its head; nothing is published yet.
-- found: epoch, seq, chain and bytes of the head; mint: epoch of a stream that is made; events: id, type, length of the
-- A2A frame and facade of each, flat; bodies: their envelopes without the opening brace, behind `skip` others; at: their
-- time, or nil. A frame ends two braces before the envelope; 0: none; facade "": none.
-- Returns the sequences as text, epoch, the sequence and chain before, the chain, and the hint: with the bytes while they
-- are few and somebody listens: most streams have no followers, and those at a former primary are not known here.
local function write_events(head, stream, hints, found, mint, events, bodies, skip, at)
  local epoch, top, chain, bytes = found[1], tonumber(found[2] or '0'), found[3], tonumber(found[4] or '0')
  if not epoch then
    epoch, chain = mint, string.sub(redis.sha1hex(mint), 1, 8)
  end
  local before, previous = top, chain
  local is_followed = redis.call('PUBSUB', 'SHARDNUMSUB', hints)[2] > 0
  -- The first piece of the hint is its own line, which is known last.
  local sequences, hint, hint_size = {}, {''}, 0
  for n = 1, #events, 4 do
    local id, kind, length, facade = events[n], events[n + 1], events[n + 2], events[n + 3]
    local place = #sequences + 1
    top = top + 1
    local sequence = int_text(top)
    local data = '{"sequence":' .. sequence .. ',' .. bodies[place + skip]
    local frame = '-'
    if length == 0 and facade == '' then
      redis.call('XADD', stream, sequence .. '-0', 'i', id, 'k', kind, 'p', chain, 'd', data)
    else
      local row = {'i', id, 'k', kind, 'p', chain, 'd', data}
      if length > 0 then
        frame = int_text(#data - 2 - length) .. ',' .. int_text(length)
        row[#row + 1] = 'w'
        row[#row + 1] = frame
      end
      if facade ~= '' then
        row[#row + 1] = 't'
        row[#row + 1] = facade
      end
      redis.call('XADD', stream, sequence .. '-0', unpack(row))
    end
    chain = string.sub(redis.sha1hex(chain .. id), 1, 8)
    bytes = bytes + #data
    sequences[place] = sequence
    if is_followed and hint_size <= HINT_LIMIT then
      local shown = facade == '' and '-' or facade
      local line = id .. ' ' .. kind .. ' ' .. frame .. ' ' .. shown .. ' ' .. #data .. '\n'
      hint[#hint + 1] = line
      hint[#hint + 1] = data
      hint_size = hint_size + #line + #data
    end
  end
  local last, size, time = sequences[#sequences], int_text(bytes), at and {'at', at} or {}
  if not found[1] then
    redis.call('HSET', head, 'epoch', epoch, 'first', '1', 'seq', last, 'chain', chain, 'bytes', size, unpack(time))
  else
    redis.call('HSET', head, 'seq', last, 'chain', chain, 'bytes', size, unpack(time))
  end
  local line = 'e ' .. sequences[1] .. '-' .. last .. '.' .. previous .. '.' .. chain .. '\n'
  if is_followed and #line + hint_size <= HINT_LIMIT then
    hint[1] = line
    line = table.concat(hint)
  end
  return sequences, epoch, before, previous, chain, line
end
