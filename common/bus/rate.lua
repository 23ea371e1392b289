-- KEYS: what is counted.  ARGV: most in a minute
-- Answers 0 and counts one, or after how many milliseconds there is room again. The key holds the
-- moment at which all that was counted will have been allowed at an even pace (GCRA); so much may
-- come at once as a minute allows. The clock is the server's.
local most = tonumber(ARGV[1])
if #KEYS ~= 1 or not most or most < 1 then
  return redis.error_reply('ERR rate: unusable arguments')
end
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local full = tonumber(redis.call('GET', KEYS[1]) or '0') or 0
full = math.min(math.max(full, now), now + 60) + 60 / most
if full > now + 60.000001 then
  return math.ceil((full - now - 60) * 1000)
end
redis.call('SET', KEYS[1], string.format('%.6f', full), 'PX', math.ceil((full - now) * 1000))
return 0
