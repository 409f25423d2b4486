#!lua flags=allow-oom
-- open_rows: from here on the rows of an owner's lists are noted in a stream as they change, for whoever follows them.
--
-- KEYS  1 head (of that stream)
-- ARGV  1 control, JSON: mint (epoch of a stream that begins now), at (ms, text: somebody follows it)
-- RETURNS  the epoch that it has
-- NEVER  moves the sequence or chain of a stream that there is.

local epoch = redis.call('HGET', head, 'epoch')
if not epoch then
  epoch = control.mint
  local chain = string.sub(redis.sha1hex(epoch), 1, 8)
  redis.call('HSET', head, 'epoch', epoch, 'first', '1', 'seq', '0', 'chain', chain, 'bytes', '0')
end
redis.call('HSET', head, 'followed', control.at)
return epoch
