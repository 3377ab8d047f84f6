"""PING, HELLO, AUTH and the like: the connection itself, and MULTI around commands."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

from fanlog.format.resp_replies import OK, ErrorReply, MapReply, RespReply, Simple
from fanlog.listeners.redis.login import DEFAULT_USER, NO_PASSWORD, log_in
from fanlog.listeners.redis.peer import REDIS_VERSION, RedisPeer

if TYPE_CHECKING:
    from fanlog.format.resp import Command

logger = logging.getLogger("fanlog.listeners")

_PLAIN = re.compile(rb"[!-~]*")
_DATABASES = 16
_BAD_NAME = ErrorReply("ERR Client names cannot contain spaces, newlines or special characters.")
NOT_A_NUMBER = ErrorReply("ERR value is not an integer or out of range")
SYNTAX = ErrorReply("ERR syntax error")


def text_of(word: bytes) -> str:
    return word.decode(errors="surrogateescape")


def maybe_number(word: bytes) -> int | None:
    """A number of 64 bits as Redis reads it."""
    digits = word[1:] if word[:1] == b"-" else word
    if not digits.isdigit() or (digits[:1] == b"0" and word != b"0") or len(digits) > 19:
        return None
    number = int(word)
    return number if -(1 << 63) <= number < 1 << 63 else None


def is_plain(word: bytes) -> bool:
    """Whether a name has nothing in it that would break a line of CLIENT LIST."""
    return _PLAIN.fullmatch(word) is not None


def ping(session: RedisPeer, words: Command) -> RespReply:
    if len(words) > 2:
        return ErrorReply("ERR wrong number of arguments for 'ping' command")
    if session.subscribed and not session.resp3:
        return [b"pong", words[1] if len(words) == 2 else b""]
    return words[1] if len(words) == 2 else Simple("PONG")


def echo(session: RedisPeer, words: Command) -> RespReply:
    return words[1]


def quit_(session: RedisPeer, words: Command) -> RespReply:
    session.end()
    return OK


def reset(session: RedisPeer, words: Command) -> RespReply:
    session.drop_queue()
    session.unsubscribe_all()
    session.speak(2)
    session.replies, session.skip_next = "on", False
    session.name, session.database = b"", 0
    session.log_out()
    return Simple("RESET")


def auth(session: RedisPeer, words: Command) -> RespReply:
    if len(words) > 3:
        return SYNTAX
    if len(words) == 2 and not session.state.guarded:
        return NO_PASSWORD
    user = words[1] if len(words) == 3 else DEFAULT_USER
    return log_in(session, user, words[-1], lambda: OK)


def set_name(session: RedisPeer, name: bytes) -> ErrorReply | None:
    if not is_plain(name):
        return _BAD_NAME
    session.name = name
    logger.debug("%s: is client %s", session.peer, text_of(name))
    return None


def hello(session: RedisPeer, words: Command) -> RespReply:
    version = 3 if session.resp3 else 2
    if len(words) > 1:
        given = maybe_number(words[1])
        if given is None:
            return ErrorReply("ERR Protocol version is not an integer or out of range")
        if given not in (2, 3):
            return ErrorReply("NOPROTO unsupported protocol version")
        version = given
    name: bytes | None = None
    login: tuple[bytes, bytes] | None = None
    at = 2
    while at < len(words):
        option = words[at].upper()
        if option == b"AUTH" and at + 2 < len(words):
            login = (words[at + 1], words[at + 2])
            at += 3
        elif option == b"SETNAME" and at + 1 < len(words):
            name = words[at + 1]
            at += 2
        else:
            return ErrorReply(f"ERR Syntax error in HELLO option '{text_of(words[at])}'")
    if login is not None:
        return log_in(session, *login, lambda: _greeting(session, version, name))
    return _greeting(session, version, name)


def _greeting(session: RedisPeer, version: int, name: bytes | None) -> RespReply:
    """The answer to HELLO."""
    if not session.trusted:
        return ErrorReply(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the "
            "HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and "
            "select the RESP protocol version at the same time"
        )
    if name is not None and (fault := set_name(session, name)) is not None:
        return fault
    session.speak(version)
    logger.debug("%s: hello from client %s, RESP%d", session.peer, text_of(session.name), version)
    return MapReply(
        {
            b"server": b"redis",
            b"version": REDIS_VERSION.encode(),
            b"proto": version,
            b"id": session.number,
            b"mode": b"standalone",
            b"role": b"master",
            b"modules": [],
        }
    )


def select(session: RedisPeer, words: Command) -> RespReply:
    number = maybe_number(words[1])
    if number is None or not -(1 << 31) <= number < 1 << 31:
        return NOT_A_NUMBER
    if not 0 <= number < _DATABASES:
        return ErrorReply("ERR DB index is out of range")
    session.database = number
    return OK


def multi(session: RedisPeer, words: Command) -> RespReply:
    if session.queue is not None:
        return ErrorReply("ERR MULTI calls can not be nested")
    session.begin_queue()
    return OK


def exec_(session: RedisPeer, words: Command) -> RespReply:
    if session.queue is None:
        return ErrorReply("ERR EXEC without MULTI")
    if session.queue_failed:
        session.drop_queue()
        return ErrorReply("EXECABORT Transaction discarded because of previous errors.")
    return session.run_queue()


def discard(session: RedisPeer, words: Command) -> RespReply:
    if session.queue is None:
        return ErrorReply("ERR DISCARD without MULTI")
    session.drop_queue()
    return OK
