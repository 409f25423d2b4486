#!lua flags=allow-oom
-- forget_sessions: removes sessions, from the engine or their archive rows, unless there is a legal hold on one of
-- their owners. The same call records all other references to them, so that another process can continue.
--
-- KEYS  1 forgotten   2 holds   3 due   4 stuck   5.. keys of the sessions, and buckets of rows, by index
-- ARGV  1 control, JSON:
--         id        of the tombstone
--         header    the part of it that is kept
--         is_again  1: they were forgotten before, and a data loss has restored them
--         sessions  list of [number, session, owners, record, live, archived]: number = text, one of its own; record =
--                   the references to it; live = [head, open_set, targets, sequence, keys] or false; archived = [row,
--                   rows, acks] or false; keys = list of indexes; row = index into ARGV of the value of each row; rows
--                   = list of [key, index of its field], its own first
--       2.. byte strings
-- RETURNS  for each session "forgotten" | "held" | "changed"; changed: it has new events, was restored, or archived
-- NEVER  writes anything of a session before all of it was compared, or deletes a row with another value.

local function is_held(owners)
  for _, owner in ipairs(owners) do
    if redis.call('HEXISTS', holds, owner) == 1 then
      return true
    end
  end
  return false
end

local function is_unchanged(live, archived)
  if live then
    local head, open_set, _, sequence = unpack(live)
    return redis.call('HGET', KEYS[head], 'seq') == sequence and redis.call('ZCARD', KEYS[open_set]) == 0
  end
  local row, rows = unpack(archived)
  return redis.call('HGET', KEYS[rows[1][1]], ARGV[rows[1][2]]) == ARGV[row]
end

local function remove_live(session, live)
  local head, open_set, targets, _, own = unpack(live)
  for _, name in ipairs(redis.call('HKEYS', KEYS[targets])) do
    redis.call('ZREM', due, 'target:' .. name)
    redis.call('ZREM', stuck, session .. ' ' .. name)
  end
  for _, key in ipairs(own) do
    redis.call('UNLINK', KEYS[key])
  end
  redis.call('UNLINK', KEYS[head], KEYS[open_set], KEYS[targets])
end

local function remove_rows(archived)
  local row, rows, acks = unpack(archived)
  redis.call('UNLINK', KEYS[acks])
  for _, place in ipairs(rows) do
    if redis.call('HGET', KEYS[place[1]], ARGV[place[2]]) == ARGV[row] then
      redis.call('HDEL', KEYS[place[1]], ARGV[place[2]])
    end
  end
end

local outcomes = {}
for place, one in ipairs(control.sessions) do
  local number, session, owners, record, live, archived = unpack(one)
  local field = control.id .. ' ' .. number
  if redis.call('HEXISTS', forgotten, field) == 1 then
    -- A call is repeated if its reply was lost.
    outcomes[place] = 'forgotten'
  elseif control.is_again == 0 and is_held(owners) then
    outcomes[place] = 'held'
  elseif not is_unchanged(live, archived) then
    outcomes[place] = 'changed'
  else
    redis.call('HSET', forgotten, control.id, control.header, field, record)
    if live then
      remove_live(session, live)
    else
      remove_rows(archived)
    end
    outcomes[place] = 'forgotten'
  end
end
return outcomes
