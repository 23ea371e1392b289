-- KEYS: present, head.  ARGV: act (here|left|look), member, ttl_s (how long it counts), keep_s
-- Answers {how many are present, since when this is remembered}; {-1, ''} where nothing is. The
-- clock is the server's. Members have the moment of their expiry as score; `since`, which is no
-- member, the negative of its own moment, so that it never expires.
local act, member, ttl_s, keep_s = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
if #KEYS ~= 2 or (act ~= 'here' and act ~= 'left' and act ~= 'look')
    or not ttl_s or ttl_s <= 0 or not keep_s or keep_s < 1 then
  return redis.error_reply('ERR presence: unusable arguments')
end
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local now_s = string.format('%.6f', now)

if act == 'left' and redis.call('HGET', KEYS[2], 'closed') then
  redis.call('DEL', KEYS[1]) -- the run has ended: nobody will ask
  return {-1, ''}
end
if act ~= 'look' then
  redis.call('ZREMRANGEBYSCORE', KEYS[1], '0', now_s)
  redis.call('ZADD', KEYS[1], 'NX', '-' .. now_s, 'since')
  if act == 'here' then
    redis.call('ZADD', KEYS[1], string.format('%.6f', now + ttl_s), 'm:' .. member)
  else
    redis.call('ZREM', KEYS[1], 'm:' .. member)
  end
  redis.call('EXPIRE', KEYS[1], ARGV[4])
end
local since = redis.call('ZSCORE', KEYS[1], 'since')
if not since then return {-1, ''} end
return {redis.call('ZCOUNT', KEYS[1], '(' .. now_s, '+inf'), since}
