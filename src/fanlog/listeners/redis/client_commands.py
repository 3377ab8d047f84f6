"""CLIENT: lists connections, and describes or changes a connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fanlog.format.resp_replies import (
    NO_REPLY,
    OK,
    Distinct,
    ErrorReply,
    MapReply,
    RespReply,
    Verbatim,
)
from fanlog.identity import Verb
from fanlog.listeners.redis.connection_commands import (
    SYNTAX,
    is_plain,
    maybe_number,
    set_name,
    text_of,
)
from fanlog.listeners.redis.peer import CommandSpec, RedisPeer
from fanlog.listeners.redis.pubsub_commands import help_lines

if TYPE_CHECKING:
    from fanlog.format.resp import Command

_TYPES = ("normal", "master", "replica", "slave", "pubsub")

_HELP = """\
CLIENT <subcommand> [<arg> [value] [opt] ...]. Subcommands are:
GETNAME
    Return the name of the current connection.
ID
    Return the ID of the current connection.
INFO
    Return information about the current client connection.
KILL <ip:port>
    Kill connection made from <ip:port>.
KILL <option> <value> [<option> <value> [...]]
    Kill connections. Options are:
    * ADDR (<ip:port>|<unixsocket>:0)
      Kill connections made from the specified address
    * LADDR (<ip:port>|<unixsocket>:0)
      Kill connections made to specified local address
    * TYPE (NORMAL|MASTER|REPLICA|PUBSUB)
      Kill connections by type.
    * USER <username>
      Kill connections authenticated by <username>.
    * SKIPME (YES|NO)
      Skip killing current connection (default: yes).
LIST [options ...]
    Return information about client connections. Options:
    * TYPE (NORMAL|MASTER|REPLICA|PUBSUB)
      Return clients of specified type.
NO-EVICT (ON|OFF)
    Protect current client connection from eviction.
NO-TOUCH (ON|OFF)
    Will not touch LRU/LFU stats when this mode is on.
REPLY (ON|OFF|SKIP)
    Control the replies sent to the current connection.
SETINFO <option> <value>
    Set client meta attr. Options are LIB-NAME and LIB-VER.
SETNAME <name>
    Assign the name <name> to the current connection.
TRACKING OFF
    Control server assisted client side caching.
HELP
    Prints this help."""


def kind_of(session: RedisPeer) -> str:
    return "pubsub" if session.subscribed else "normal"


def line_of(session: RedisPeer) -> str:
    """A connection as CLIENT LIST shows it."""
    now = session.state.now()
    flags = ("P" if session.subscribed else "") + ("x" if session.queue is not None else "")
    fields = {
        "id": session.number,
        "addr": session.peer,
        "laddr": session.local,
        "fd": -1,
        "name": text_of(session.name),
        "age": int(now - session.created_at),
        "idle": int(now - session.outlet.heard_at),
        "flags": flags or "N",
        "db": session.database,
        "sub": len(session.channels),
        "psub": len(session.patterns),
        "ssub": len(session.shard_channels),
        "multi": -1 if session.queue is None else len(session.queue),
        "qbuf": 0,
        "qbuf-free": 0,
        "argv-mem": 0,
        "multi-mem": 0,
        "rbs": 0,
        "rbp": 0,
        "obl": 0,
        "oll": 0,
        "omem": session.outlet.kept_bytes,
        "tot-mem": session.outlet.kept_bytes,
        "events": "rw" if session.outlet.blocked else "r",
        "cmd": session.last_command,
        "user": session.user,
        "redir": -1,
        "resp": 3 if session.resp3 else 2,
        "lib-name": text_of(session.library[0]),
        "lib-ver": text_of(session.library[1]),
    }
    return " ".join(f"{name}={value}" for name, value in fields.items())


def _id(session: RedisPeer, words: Command) -> RespReply:
    return session.number


def _info(session: RedisPeer, words: Command) -> RespReply:
    return Verbatim(line_of(session) + "\n")


def _list(session: RedisPeer, words: Command) -> RespReply:
    sessions = list(session.state.sessions.values())
    if len(words) == 4 and words[2].upper() == b"TYPE":
        kind = text_of(words[3]).lower()
        if kind not in _TYPES:
            return ErrorReply(f"ERR Unknown client type '{text_of(words[3])}'")
        sessions = [other for other in sessions if kind_of(other) == kind]
    elif len(words) > 3 and words[2].upper() == b"ID":
        numbers = [maybe_number(word) for word in words[3:]]
        if None in numbers:
            return ErrorReply("ERR Invalid client ID")
        known = session.state.sessions
        sessions = [known[number] for number in numbers if number is not None and number in known]
    elif len(words) != 2:
        return SYNTAX
    return Verbatim("".join(line_of(other) + "\n" for other in sessions))


def _setname(session: RedisPeer, words: Command) -> RespReply:
    return set_name(session, words[2]) or OK


def _getname(session: RedisPeer, words: Command) -> RespReply:
    return session.name or None


def _setinfo(session: RedisPeer, words: Command) -> RespReply:
    option = words[2].lower()
    if option not in (b"lib-name", b"lib-ver"):
        return ErrorReply(f"ERR Unrecognized option '{text_of(words[2])}'")
    if not is_plain(words[3]):
        return ErrorReply(
            f"ERR {text_of(option)} cannot contain spaces, newlines or special characters."
        )
    name, version = session.library
    session.library = (words[3], version) if option == b"lib-name" else (name, words[3])
    return OK


def _reply(session: RedisPeer, words: Command) -> RespReply:
    mode = words[2].upper()
    if mode == b"ON":
        session.replies = "on"
        return OK
    if mode == b"OFF":
        session.replies = "off"
        return NO_REPLY
    if mode == b"SKIP":
        if session.replies != "off":
            session.skip_next = True
        return NO_REPLY
    return SYNTAX


def _no_effect(session: RedisPeer, words: Command) -> RespReply:
    """NO-EVICT and NO-TOUCH are about Redis's memory and its keys: they change nothing here."""
    return OK if words[2].upper() in (b"ON", b"OFF") else SYNTAX


def _tracking(session: RedisPeer, words: Command) -> RespReply:
    if words[2].upper() == b"OFF" and len(words) == 3:
        return OK
    if words[2].upper() == b"ON":
        return ErrorReply("ERR CLIENT TRACKING is about keys, and there are none here")
    return SYNTAX


def _getredir(session: RedisPeer, words: Command) -> RespReply:
    return -1


def _trackinginfo(session: RedisPeer, words: Command) -> RespReply:
    return MapReply({b"flags": Distinct([b"off"]), b"redirect": -1, b"prefixes": []})


class _KillFilter:
    """Which connections a CLIENT KILL means."""

    def __init__(self, caller: RedisPeer) -> None:
        self._caller = caller
        self._tests: list[Callable[[RedisPeer], bool]] = []
        self._skip_caller = True

    def add(self, option: bytes, value: bytes) -> ErrorReply | None:
        text = text_of(value)
        if option == b"ID":
            number = maybe_number(value)
            if number is None or number < 1:
                return ErrorReply("ERR client-id should be greater than 0")
            self._tests.append(lambda other: other.number == number)
        elif option == b"TYPE":
            if text.lower() not in _TYPES:
                return ErrorReply(f"ERR Unknown client type '{text}'")
            self._tests.append(lambda other: kind_of(other) == text.lower())
        elif option == b"ADDR":
            self._tests.append(lambda other: other.peer == text)
        elif option == b"LADDR":
            self._tests.append(lambda other: other.local == text)
        elif option == b"USER":
            if text != "default" and not self._caller.state.knows_user(text):
                return ErrorReply(f"ERR No such user '{text}'")
            self._tests.append(lambda other: other.user == text)
        elif option == b"SKIPME" and text.lower() in ("yes", "no"):
            self._skip_caller = text.lower() == "yes"
        else:
            return SYNTAX
        return None

    def found(self) -> list[RedisPeer]:
        return [
            other
            for other in self._caller.state.sessions.values()
            if not (self._skip_caller and other is self._caller)
            and all(test(other) for test in self._tests)
        ]


def _kill_one(session: RedisPeer, address: str) -> RespReply:
    """The old form, which may also mean the caller."""
    for other in session.state.sessions.values():
        if other.peer == address:
            _cut_off(session, other)
            return OK
    return ErrorReply("ERR No such client")


def _cut_off(caller: RedisPeer, other: RedisPeer) -> None:
    who = caller.permit.who
    caller.state.broker.audit.note(who, "connection.close", other.peer, "ok", "redis")
    if other is caller:
        caller.end()
    else:
        other.outlet.finish()


def _kill(session: RedisPeer, words: Command) -> RespReply:
    if len(words) == 3:
        return _kill_one(session, text_of(words[2]))
    wanted = _KillFilter(session)
    for at in range(2, len(words), 2):
        if at + 1 == len(words):
            return SYNTAX
        fault = wanted.add(words[at].upper(), words[at + 1])
        if fault is not None:
            return fault
    found = wanted.found()
    for other in found:
        _cut_off(session, other)
    return len(found)


def _part(
    name: str,
    arity: int,
    handler: Callable[[RedisPeer, Command], RespReply],
    summary: str,
    *,
    since: str = "2.4.0",
    admin: bool = False,
) -> CommandSpec:
    return CommandSpec(
        name=f"client|{name}",
        arity=arity,
        handler=handler,
        flags=("admin", "noscript", "loading", "stale")
        if admin
        else ("loading", "stale")
        if name == "help"
        else ("noscript", "loading", "stale"),
        categories=("admin", "slow", "dangerous", "connection")
        if admin
        else ("slow", "connection"),
        summary=summary,
        since=since,
        group="connection",
        verb=Verb.ADMIN if admin and name != "no-evict" else None,
    )


CLIENT_PARTS = {
    "id": _part("id", 2, _id, "Returns the unique client ID of the connection.", since="5.0.0"),
    "info": _part("info", 2, _info, "Returns information about the connection.", since="6.2.0"),
    "list": _part("list", -2, _list, "Lists open connections.", admin=True),
    "setname": _part("setname", 3, _setname, "Sets the connection name.", since="2.6.9"),
    "getname": _part("getname", 2, _getname, "Returns the connection's name.", since="2.6.9"),
    "setinfo": _part("setinfo", 4, _setinfo, "Sets information of the client.", since="7.2.0"),
    "kill": _part("kill", -3, _kill, "Terminates open connections.", admin=True),
    "reply": _part("reply", 3, _reply, "Instructs the server whether to reply.", since="3.2.0"),
    "no-evict": _part(
        "no-evict", 3, _no_effect, "Sets the client eviction mode.", since="7.0.0", admin=True
    ),
    "no-touch": _part(
        "no-touch", 3, _no_effect, "Controls whether commands touch keys.", since="7.2.0"
    ),
    "tracking": _part(
        "tracking", -3, _tracking, "Controls server-assisted client-side caching.", since="6.0.0"
    ),
    "trackinginfo": _part(
        "trackinginfo", 2, _trackinginfo, "Returns what is tracked.", since="6.2.0"
    ),
    "getredir": _part("getredir", 2, _getredir, "Returns where tracking goes.", since="6.0.0"),
    "help": _part("help", 2, lambda session, words: help_lines(_HELP), "Returns helpful text."),
}
