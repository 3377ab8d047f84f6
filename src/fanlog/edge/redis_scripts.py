"""What an edge keeps in Redis, and the scripts that keep it. For a topic `T`:

| key                 | holds                                                                     |
| ------------------- | ------------------------------------------------------------------------- |
| `fanlog:stream:T`   | a stream: entry `n-0` is the message with offset `n - 1`, `b` its body     |
| `fanlog:topic:T`    | a hash: `number`, `next` (the next offset), `epochs` (`epoch:offset,...`), |
|                     | `run` (the run of Redis in which it was last written)                     |
| `fanlog:topics`     | the set of all topics                                                     |
| `fanlog:numbers`    | the last number that a topic got                                          |
| `fanlog:once:N:T:ID`| what a publish with an id was answered; `N` is the length of `T`          |
| `fanlog:heard:T:ID` | that a message of an application was taken in                             |

A message is announced on the channel `fanlog:live:T`, as `offset epoch number time flag`, a line
break and the body; and its value alone on the channel `T`, for whoever subscribes to that.
"""

from __future__ import annotations

STREAM = "fanlog:stream:"
TOPIC = "fanlog:topic:"
TOPICS = "fanlog:topics"
NUMBERS = "fanlog:numbers"
ONCE = "fanlog:once:"
HEARD = "fanlog:heard:"
LIVE = "fanlog:live:"
SIGNAL = "fanlog:signal:"
OWN_PREFIX = "fanlog:"

# Makes the topic if need be, and begins a new epoch if Redis was started since: it may have lost
# the end. A stream whose topic Redis has evicted is of nobody: its entries would refuse new ones.
# KEYS: topic, topics, numbers, stream. ARGV: name, run, a random number, ttl in seconds.
_BEGIN = """
local topic, name, run = KEYS[1], ARGV[1], ARGV[2]
local now = redis.call('TIME')
local time_us = now[1] .. string.format('%06d', now[2])
local known = redis.call('HMGET', topic, 'number', 'next', 'epochs', 'run')
local number, next_offset, epochs = known[1], tonumber(known[2] or '0'), known[3]
if not number then
  if redis.call('EXISTS', KEYS[3]) == 0 then redis.call('SET', KEYS[3], ARGV[3]) end
  number = redis.call('INCR', KEYS[3])
  epochs = now[1] .. ':0'
  redis.call('HSET', topic, 'number', number, 'next', 0, 'epochs', epochs, 'run', run)
  redis.call('SADD', KEYS[2], name)
  redis.call('DEL', KEYS[4])
elseif known[4] ~= run then
  local last = tonumber(string.match(epochs, '(%d+):%d+$'))
  local epoch = math.max(tonumber(now[1]), last + 1)
  epochs = epochs .. ',' .. string.format('%.0f', epoch) .. ':' .. next_offset
  redis.call('HSET', topic, 'epochs', epochs, 'run', run)
end
local epoch = string.match(epochs, '(%d+):%d+$')
"""

# Answers number, next, epochs, and the first offset that is kept.
OPEN = (
    _BEGIN
    + """
local first = redis.call('XRANGE', KEYS[4], '-', '+', 'COUNT', 1)
local kept = next_offset
if first[1] then kept = tonumber(string.match(first[1][1], '^(%d+)')) - 1 end
for _, key in ipairs({KEYS[1], KEYS[4]}) do redis.call('EXPIRE', key, ARGV[4]) end
return {number, next_offset, epochs, kept}
"""
)

_APPEND = """
local function append(body, flag)
  local id = string.format('%.0f', redis.call('HINCRBY', topic, 'next', 1))
  redis.call('XADD', KEYS[4], 'MAXLEN', '~', ARGV[5], id .. '-0', 'b', body, 't', time_us)
  local head = table.concat({id - 1, epoch, number, time_us, flag}, ' ')
  redis.call('PUBLISH', ARGV[6], head .. '\\n' .. body)
end
local function keep()
  redis.call('EXPIRE', topic, ARGV[4])
  redis.call('EXPIRE', KEYS[4], ARGV[4])
end
"""

# KEYS[5]: once (or the topic again, if there is no id). ARGV from 5 on: maxlen, live channel,
# seconds that an id is kept (0: no id), then body and value of each message.
PUBLISH = (
    _BEGIN
    + """
if ARGV[7] ~= '0' then
  local before = redis.call('GET', KEYS[5])
  if before then return {number, epoch, tonumber(before), 1} end
end
"""
    + _APPEND
    + """
for i = 8, #ARGV, 2 do
  append(ARGV[i], 'e')
  redis.call('PUBLISH', name, ARGV[i + 1])
end
if ARGV[7] ~= '0' then redis.call('SET', KEYS[5], next_offset, 'EX', ARGV[7]) end
keep()
return {number, epoch, next_offset, 0}
"""
)

# Takes in what an application has published by itself: the first edge that comes with it does it.
# KEYS[5]: heard. ARGV from 5 on: maxlen, live channel, seconds, body.
ADOPT = (
    _BEGIN
    + _APPEND
    + """
if redis.call('SET', KEYS[5], '1', 'NX', 'EX', ARGV[7]) then
  append(ARGV[8], 'a')
  keep()
end
return 1
"""
)
