"""Whole conversations, said to a real Redis and to Fanlog: both must answer byte for byte alike."""

from __future__ import annotations

from typing import Any

import pytest

from tests.listeners.redis.wire import Wire, command, masked

SENTINEL = b"end-of-conversation"
SILENCE_S = 0.1

# Each is one script of inline commands.
SCRIPTS = [
    # Arguments
    "publish a",
    "publish a b c",
    "subscribe",
    "psubscribe",
    "ssubscribe",
    "spublish a",
    "ping a b",
    "echo",
    "time x",
    "select",
    "reset x",
    "multi x",
    # What there is not
    "foo",
    "foo bar baz",
    "foo " + "x" * 300 + " y",
    "x" * 300 + " y",
    "foo a b c d e f g h i j k l m n o p q r s t u v w x y z " + "long " * 40,
    "client",
    "client foo",
    "client getname x",
    "client id x",
    "client info x",
    "pubsub",
    "pubsub foo",
    "pubsub channels a b",
    "pubsub numpat x",
    "config",
    "config foo",
    "command foo",
    "command count x",
    # Keys, of which there are none
    "flushall\nflushdb\nflushall async\nFLUSHDB SYNC\nflushall now\nflushdb async async",
    # The connection
    "ping\nping hello\nPING\nPiNg",
    "echo hello\necho ''",
    "quit\nping",
    "quit now",
    "reset\nping",
    "select 3\nselect 0\nselect 15\nselect 16\nselect -1\nselect a\nselect 99999999999999999999",
    "auth x",
    "auth a b",
    "auth default b",
    "auth a b c",
    "hello\nhello 2\nhello 3\nhello\nhello 2\nhello",
    "hello 1\nhello 4\nhello x\nhello 03",
    "hello 3 foo\nhello 2 auth a\nhello 2 setname\nhello 3 auth default",
    "hello 2 auth a b\nhello 3 auth default b setname foo\nclient getname\nhello 2 setname 'a b'",
    "client setname x\nclient getname\nclient setname ''\nclient getname\nclient setname 'a b'",
    "client reply skip\nping\necho 1\nclient reply off\nping\nclient reply on\nping",
    "client reply skip\nclient reply skip\nping\nping 2\nclient reply x",
    "client reply skip\nfoo\nping\nclient reply skip\npublish a\nping",
    "client reply off\nsubscribe a\npublish a 1\nclient reply on",
    "client no-evict on\nclient no-evict off\nclient no-evict foo",
    "client tracking off\nclient tracking foo\nclient trackinginfo\nclient getredir",
    "hello 3\nclient trackinginfo\nclient getredir\nclient getname",
    "client kill 1.1.1.1:1\nclient kill id 999999\nclient kill id x\nclient kill id 0",
    "client kill foo bar\nclient kill type foo\nclient kill addr 1:1 laddr 2:2",
    "client kill user nobody\nclient kill skipme maybe\nclient kill id 999999 skipme",
    "client list type foo\nclient list id x\nclient list foo\nclient list id 999999",
    "client list type master\nclient list type replica",
    # MULTI
    "exec\ndiscard",
    "multi\nexec",
    "multi\nmulti\nping\nexec",
    "multi\nfoo\nexec\nexec",
    "multi\npublish a\nping\nexec",
    "multi\nping\nping 2\npublish nobody 1\nexec",
    "multi\nping\ndiscard\nexec",
    "multi\nsubscribe a b\nexec\nping",
    "multi\nssubscribe a\nexec",
    "multi\nunsubscribe\nexec",
    "multi\nquit\nexec",
    "multi\nreset\nexec",
    "multi\nhello 3\nexec\nping",
    "multi\nauth a b\nselect 99\nclient foo\nexec",
    "multi\nclient reply off\nping\nexec\nping\nclient reply on",
    "hello 3\nmulti\nsubscribe a\npublish a 1\nping\nexec\nping",
    # Subscribing in RESP2
    "subscribe a\nping\nping x\npublish a 1\nmulti\nhello 3\nclient id\nfoo\nquit",
    "subscribe a\nreset\nping",
    "subscribe a a b\nunsubscribe a\nunsubscribe\nunsubscribe\nping",
    "unsubscribe\nunsubscribe x y\npunsubscribe\npunsubscribe x\nsunsubscribe\nsunsubscribe q",
    "subscribe a\npsubscribe p* p*\nunsubscribe\nping\npunsubscribe\nping",
    "subscribe a\nssubscribe s\nunsubscribe\nping\nsunsubscribe\nping",
    "subscribe ''\nunsubscribe ''",
    # Subscribing in RESP3
    "hello 3\nsubscribe a\npublish a 1\nping\npublish a 2\npublish a 3\nunsubscribe",
    "hello 3\nsubscribe a\npsubscribe *\npublish a 1\npublish a 2\nspublish a 1",
    "hello 3\nsubscribe a\npsubscribe *\npubsub channels\npubsub numsub a b\npubsub numpat",
    "hello 3\nssubscribe a\nspublish a 1\npublish a 2\nsunsubscribe\nsunsubscribe",
    "hello 3\nssubscribe a\npubsub shardchannels\npubsub shardnumsub a\npubsub shardnumsub",
    "hello 3\nsubscribe a b\npublish a 1\npublish b 2\npublish a 3\nhello 2\nping\nreset\nping",
    "hello 3\nunsubscribe\npunsubscribe x",
    "hello 3\npsubscribe a* b*\npublish ab 1\npublish bb 2\npunsubscribe a*\npublish ab 3",
    "hello 3\nsubscribe a\nreset\npublish a 1\nhello",
    # Publishing
    "publish a 1\npublish a ''\npublish '' x\nspublish a 1",
    "publish a 1\nping\npublish b 2\nping\npublish a 3",
    # What there is
    "pubsub channels\npubsub channels x*\npubsub numsub\npubsub numsub a\npubsub numpat",
    "pubsub shardchannels\npubsub shardnumsub a b",
    "pubsub help",
    "pubsub HELP\nPUBSUB NUMPAT",
    "config get\nconfig get save\nconfig get nosuch\nconfig get appendonly\nconfig get databases",
    "config set foo bar\nconfig set timeout\nconfig set a b c\nconfig set timeout x",
    "config set notify-keyspace-events KEA\nconfig get notify*",
    "config set notify-keyspace-events ''\nconfig get notify-keyspace-events",
    "config set notify-keyspace-events Q",
    "config set timeout 0\nconfig resetstat",
    "hello 3\nconfig get save\npubsub numsub a",
    "command info nosuch\ncommand docs nosuch\ncommand list x",
    "command info publish subscribe unsubscribe psubscribe punsubscribe",
    "command info echo quit reset hello auth select multi exec discard",
    "hello 3\ncommand info publish echo",
    "info nosuch\nhello 3\ninfo nosuch",
]

RAW = [
    b"*-1\r\nPING\r\n",
    b"*0\r\nPING\r\n",
    b"*-5\r\nPING\r\n",
    b"*1\r\n$-1\r\n",
    b"*1\r\n:5\r\n",
    b"*1\r\n*1\r\n",
    b"*1\r\n+PING\r\n",
    b"*abc\r\n",
    b"*\r\n",
    b"*01\r\n",
    b"*99999999999999999999\r\n",
    b"*1\r\n$1000000000\r\n",
    b"*1\r\n$abc\r\n",
    b"*1\r\n$\r\n",
    b"*1\r\n$04\r\nPING\r\n",
    b"*1\r\n$+4\r\nPING\r\n",
    b"*1\r\n$4\r\nPINGxx*1\r\n$4\r\nPING\r\n",
    b"*2\r\n$4\r\nPING\r\n$0\r\n\r\n",
    b"*1\r\n$0\r\n\r\n",
    b"PING\n",
    b"\r\n\n  \r\nPING\r\n",
    b'PING "a b"\r\n',
    b'PING "a b\r\n',
    b'PING "a"b\r\n',
    b"PING 'a\\'b'\r\n",
    b"PING 'a\\nb'\r\n",
    b'ECHO "\\x41\\n\\"\\t\\q\\xzz"\r\n',
    b"$4\r\nPING\r\n",
    b"PING\r\n*1\r\n$4\r\nPING\r\nPING\r\n*1\r\n:1\r\n*1\r\n$4\r\nPING\r\n",
    command("PING") * 500,
    command("PUBLISH", "nobody", "x") * 500,
    command("publish", "nobody", "x") * 20 + command("PING") + command("PUBLISH", "n", "y") * 20,
    command("PUBLISH", "nobody", "\r\n*3\r\n$7\r\nPUBLISH\r\n") * 50,
    command("PUBLISH", "nobody", "x") * 50 + b"*1\r\n:1\r\n",
    (command("PING") + b"*1\r\n+PING\r\n") * 10,
    (command("PING") + b"*1\r\n$-1\r\n") * 10,
    command("ECHO", b"\xff\x00" * 1000) * 30,
    command("FOO", "a", "b") * 30,
    command("SUBSCRIBE", *(f"n{i}" for i in range(2000))) + command("PING", "after"),
    command("PING") * 10 + command("SUBSCRIBE", *(f"c{i}" for i in range(150))) + b"PING\r\n",
]


def said(port: int, script: bytes) -> bytes:
    """All that a server answers, until it answers the sentinel, closes, or is silent."""
    with Wire(port) as wire:
        try:
            wire.send_raw(script)
            wire.send("PING", SENTINEL)
        except OSError:
            pass  # closed on us, and what it said is there to read
        answer = b""
        wire.sock.settimeout(SILENCE_S)
        silent = False
        while SENTINEL not in answer:
            try:
                part = wire.sock.recv(65536)
            except TimeoutError:
                if silent:
                    return answer
                await_turns(port)
                silent = True
                continue
            except ConnectionResetError:
                part = b""
            if not part:
                return answer + b"<closed>"
            answer += part
            silent = False
        return answer


def await_turns(port: int) -> None:
    """Lets a server answer others: what it had to say to whoever asked before is said by then,
    however slow the machine is."""
    with Wire(port) as other:
        for _ in range(5):
            other.tell("PING", wanted=b"+PONG\r\n")


# They log out or in, and are about a server that asks for no login.
LOGINS = ("reset", "auth")


def _marked(script: str) -> Any:
    plain = any(word in script.split() for word in LOGINS)
    return pytest.param(script, marks=pytest.mark.plain) if plain else script


@pytest.mark.parametrize("script", [_marked(script) for script in SCRIPTS])
def test_a_script_is_answered_as_by_redis(script: str, redis_port: int, fanlog_port: int) -> None:
    lines = script.replace("\n", "\r\n").encode() + b"\r\n"
    assert masked(said(fanlog_port, lines)) == masked(said(redis_port, lines))


@pytest.mark.parametrize("data", RAW, ids=lambda data: repr(data[:40]))
def test_raw_bytes_are_answered_as_by_redis(data: bytes, redis_port: int, fanlog_port: int) -> None:
    assert masked(said(fanlog_port, data)) == masked(said(redis_port, data))
