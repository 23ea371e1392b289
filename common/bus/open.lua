-- KEYS: log, head.  ARGV: epoch, base (last archived sequence), again (0|1), ttl_s
-- Takes the log for an epoch. Theory and answers: common/bus/log.py
local epoch, base, ttl_s = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[4])
if #KEYS ~= 2 or not epoch or not base or not ttl_s or ttl_s < 1 then
  return redis.error_reply('ERR open: unusable arguments')
end
local head = redis.call('HMGET', KEYS[2], 'epoch', 'top', 'closed', 'base')
local held, top, closed = tonumber(head[1]), tonumber(head[2]), head[3]
if held and held > epoch then return {'FENCED', held} end

local lost = not held or top < base or (ARGV[3] == '1' and held < epoch)
if not lost and not closed and head[2] ~= head[4] then
  -- the head without the log it speaks of (evicted, expired) counts as lost
  local tail = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
  lost = not tail or tail[1] ~= head[2] .. '-0'
end
if lost then
  redis.call('DEL', KEYS[1], KEYS[2])
  redis.call('HSET', KEYS[2], 'epoch', ARGV[1], 'base', ARGV[2], 'top', ARGV[2])
  redis.call('EXPIRE', KEYS[2], ARGV[4])
  return {'NEW', base}
end
redis.call('HSET', KEYS[2], 'epoch', ARGV[1])
if closed then return {'CLOSED', top} end
redis.call('EXPIRE', KEYS[1], ARGV[4])
redis.call('EXPIRE', KEYS[2], ARGV[4])
return {'OPEN', top}
