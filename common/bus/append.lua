-- KEYS: log, head, channel.  ARGV: batch (header and frames), archived (trim up to it; 0: nothing), ttl_s, ended_ttl_s
-- Appends one batch and tells it. Theory and answers: common/bus/log.py
local batch, ttl_s = ARGV[1], ARGV[3]
local after_s, first_s, last_s, epoch_s, ends =
  string.match(batch, '^(%d+) (%d+) (%d+) (%d+) ([-pr])\n')
local after, first, last = tonumber(after_s), tonumber(first_s), tonumber(last_s)
local epoch, archived = tonumber(epoch_s), tonumber(ARGV[2])
if ends == 'r' then ttl_s = ARGV[4] end
if #KEYS ~= 3 or not ends or after >= first or first > last
    or not archived or not tonumber(ttl_s) or tonumber(ttl_s) < 1 then
  return redis.error_reply('ERR append: unusable arguments')
end
local head = redis.call('HMGET', KEYS[2], 'epoch', 'top', 'closed', 'base')
local held, top = tonumber(head[1]), tonumber(head[2])
if held and held > epoch then return {'FENCED', held} end
if not held or held < epoch then return {'LOST', 0} end
if last <= top then return {'OK', top} end
if head[3] then return {'CLOSED', top} end
if after ~= top then return {'GAP', top} end

if head[2] == head[4] then
  redis.call('XADD', KEYS[1], last_s .. '-0', 'b', batch)
elseif not redis.call('XADD', KEYS[1], 'NOMKSTREAM', last_s .. '-0', 'b', batch) then
  return {'LOST', 0} -- the head without its log: evicted
end
redis.call('HSET', KEYS[2], 'top', last_s)
if ends == 'r' then redis.call('HSET', KEYS[2], 'closed', '1') end
if archived > 0 then
  redis.call('XTRIM', KEYS[1], 'MINID', '~', (archived < last and ARGV[2] or last_s) .. '-0')
end
redis.call('EXPIRE', KEYS[1], ttl_s)
redis.call('EXPIRE', KEYS[2], ttl_s)
redis.call('PUBLISH', KEYS[3], batch)
return {'OK', last}
