-- KEYS: present.  ARGV: member ('' to look only), ttl_s (how long it counts from now), keep_s
-- Answers how many are present; -1 if nobody has ever been. The clock is the server's.
local ttl_s, keep_s = tonumber(ARGV[2]), tonumber(ARGV[3])
if #KEYS ~= 1 or not ttl_s or not keep_s or keep_s < 1 then
  return redis.error_reply('ERR presence: unusable arguments')
end
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.6f', now))
if ARGV[1] ~= '' then
  local until_s = string.format('%.6f', now + ttl_s)
  redis.call('ZADD', KEYS[1], 'inf', 'ever', until_s, 'm:' .. ARGV[1])
  redis.call('EXPIRE', KEYS[1], ARGV[3])
end
return redis.call('ZCARD', KEYS[1]) - 1
