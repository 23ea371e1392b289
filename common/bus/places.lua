-- KEYS: the places of a user.  ARGV: member, count, ttl_s, most (0: only say)
-- A hash: how many places each member has taken, and until when that counts. Answers 1, or 0 and
-- changes nothing where all members together would have more than `most`. The clock is the server's.
local member, count, ttl_s, most = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
if #KEYS ~= 1 or not count or not ttl_s or ttl_s <= 0 or not most then
  return redis.error_reply('ERR places: unusable arguments')
end
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local all = redis.call('HGETALL', KEYS[1])
local others = 0
for i = 1, #all, 2 do
  local taken, expires = string.match(all[i + 1], '^(%d+) ([%d.]+)$')
  if not expires or tonumber(expires) <= now then
    redis.call('HDEL', KEYS[1], all[i])
  elseif all[i] ~= member then
    others = others + tonumber(taken)
  end
end
if most > 0 and others + count > most then return 0 end
if count == 0 then
  redis.call('HDEL', KEYS[1], member)
else
  redis.call('HSET', KEYS[1], member, string.format('%d %.6f', count, now + ttl_s))
  redis.call('EXPIRE', KEYS[1], math.ceil(ttl_s))
end
return 1
