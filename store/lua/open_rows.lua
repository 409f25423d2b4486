#!lua flags=allow-oom
-- open_rows: from here on changes of an owner's lists are noted in a stream, for its followers.
--
-- KEYS  1 head (of that stream)
-- ARGV  1 control, JSON: mint (epoch of a new stream), at (ms, text: time of this request)
-- RETURNS  the epoch of the stream
-- NEVER  moves the sequence or chain of an existing stream.

local epoch = redis.call('HGET', head, 'epoch')
if not epoch then
  epoch = control.mint
  local chain = string.sub(redis.sha1hex(epoch), 1, 8)
  redis.call('HSET', head, 'epoch', epoch, 'first', '1', 'seq', '0', 'chain', chain, 'bytes', '0')
end
redis.call('HSET', head, 'followed', control.at)
return epoch
