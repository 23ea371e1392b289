-- KEYS: log, head.  ARGV: epoch, base, again (0|1), ttl_s
-- Takes the log for an epoch. Theory and answers: common/bus/log.py
local epoch, base, again, ttl_s = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3] == '1', tonumber(ARGV[4])
if #KEYS ~= 2 or not epoch or not base or not ttl_s or ttl_s < 1 then
  return redis.error_reply('ERR open: unusable arguments')
end
local head = redis.call('HMGET', KEYS[2], 'epoch', 'top', 'closed', 'base', 'virgin')
local held, top, closed = tonumber(head[1]), tonumber(head[2]), head[3]
local written = head[2] ~= head[4]
if held and held > epoch then return {'FENCED', held} end

local lost = not held or top < base or (again and held < epoch)
if not lost and not closed and written then
  -- the head without the log it speaks of (evicted, expired) counts as lost
  local tail = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
  lost = not tail or tail[1] ~= head[2] .. '-0'
end
if lost then
  redis.call('DEL', KEYS[1], KEYS[2])
  redis.call('HSET', KEYS[2], 'epoch', ARGV[1], 'base', ARGV[2], 'top', ARGV[2])
  -- before the first epoch opened its log, nobody can have been told anything
  if epoch == 1 and not again then redis.call('HSET', KEYS[2], 'virgin', '1') end
  redis.call('EXPIRE', KEYS[2], ARGV[4])
  return {'NEW', base}
end
redis.call('HSET', KEYS[2], 'epoch', ARGV[1])
if closed then return {'CLOSED', top} end
redis.call('EXPIRE', KEYS[1], ARGV[4])
redis.call('EXPIRE', KEYS[2], ARGV[4])
-- whoever began this log in place of a lost one died before it wrote: what was lost is still unknown
if not again and not written and not head[5] then return {'NEW', top} end
return {'OPEN', top}
