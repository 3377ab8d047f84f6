"""Request and reply over topics: the headers that bring an answer back to its caller.

| header             | in      | meaning                                          |
| ------------------ | ------- | ------------------------------------------------ |
| fanlog-reply-to    | request | the inbox: the topic that the reply goes to      |
| fanlog-correlation | both    | which request this is, in the words of who asked |
| fanlog-error       | reply   | why there is no answer                           |
"""

from __future__ import annotations

REPLY_TO = "fanlog-reply-to"
CORRELATION = "fanlog-correlation"
ERROR = "fanlog-error"
