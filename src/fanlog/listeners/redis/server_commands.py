"""INFO, CONFIG, TIME and FLUSHALL: the server, as clients ask for it."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from typing import TYPE_CHECKING

from fanlog.format.globs import Glob
from fanlog.format.resp_replies import OK, ErrorReply, MapReply, RespReply, Verbatim
from fanlog.identity import Verb
from fanlog.listeners.redis.connection_commands import SYNTAX, maybe_number, text_of
from fanlog.listeners.redis.peer import REDIS_VERSION, CommandSpec, RedisPeer
from fanlog.listeners.redis.pubsub_commands import help_lines, too_long

if TYPE_CHECKING:
    from fanlog.format.resp import Command

_HELP = """\
CONFIG <subcommand> [<arg> [value] [opt] ...]. Subcommands are:
GET <pattern>
    Return parameters matching the glob-like <pattern> and their values.
SET <directive> <value>
    Set the configuration <directive> to <value>.
RESETSTAT
    Reset statistics reported by the INFO command.
HELP
    Prints this help."""

_NUMBERS = (
    "databases",
    "maxclients",
    "maxmemory",
    "proto-max-bulk-len",
    "tcp-keepalive",
    "timeout",
)
# Settings of the start, which do not change at runtime.
_FIXED = ("databases", "maxclients", "proto-max-bulk-len")
_EVENT_CLASSES = "g$lshzxetdmn"
_EVENT_FLAGS = "AKE" + _EVENT_CLASSES


def time(session: RedisPeer, words: Command) -> RespReply:
    now_us = session.state.now_us()
    return [b"%d" % (now_us // 1_000_000), b"%d" % (now_us % 1_000_000)]


def flush(session: RedisPeer, words: Command) -> RespReply:
    """FLUSHALL and FLUSHDB, which test suites and frameworks call between runs. There are no keys
    to remove, and messages are not keys: they stay."""
    if len(words) > 2 or (len(words) == 2 and text_of(words[1]).lower() not in ("async", "sync")):
        return SYNTAX
    return OK


# INFO


def _server(session: RedisPeer) -> dict[str, object]:
    state = session.state
    uptime = int(state.now() - state.started_at)
    return {
        "redis_version": REDIS_VERSION,
        "fanlog_version": state.broker.release,
        "redis_mode": "standalone",
        "os": f"{platform.system()} {platform.release()} {platform.machine()}",
        "arch_bits": 64,
        "process_id": os.getpid(),
        "tcp_port": state.port,
        "server_time_usec": state.now_us(),
        "uptime_in_seconds": uptime,
        "uptime_in_days": uptime // 86400,
    }


def _clients(session: RedisPeer) -> dict[str, object]:
    sessions = session.state.sessions.values()
    return {
        "connected_clients": len(sessions),
        "maxclients": session.state.options.connections_max,
        "blocked_clients": 0,
        "pubsub_clients": sum(other.subscribed for other in sessions),
    }


def _memory(session: RedisPeer) -> dict[str, object]:
    used = session.state.broker.turns.tail_bytes
    return {"used_memory": used, "used_memory_human": f"{used / 1048576:.2f}M", "maxmemory": 0}


def _persistence(session: RedisPeer) -> dict[str, object]:
    return {"loading": 0, "aof_enabled": 0, "rdb_bgsave_in_progress": 0}


def _stats(session: RedisPeer) -> dict[str, object]:
    state = session.state
    return {
        "total_connections_received": state.connections_received,
        "total_net_output_bytes": state.broker.fan_out.delivered_bytes,
        "rejected_connections": state.connections_rejected,
        "pubsub_channels": len(session.pubsub.channel_names(None, shard=False)),
        "pubsub_patterns": session.pubsub.pattern_count,
        "pubsubshard_channels": len(session.pubsub.channel_names(None, shard=True)),
        **session.pubsub.slow_counters(),
    }


def _replication(session: RedisPeer) -> dict[str, object]:
    return {"role": "master", "connected_slaves": 0}


def _cluster(session: RedisPeer) -> dict[str, object]:
    return {"cluster_enabled": 0}


def _keyspace(session: RedisPeer) -> dict[str, object]:
    return {}


_SECTIONS: dict[str, Callable[[RedisPeer], dict[str, object]]] = {
    "server": _server,
    "clients": _clients,
    "memory": _memory,
    "persistence": _persistence,
    "stats": _stats,
    "replication": _replication,
    "cluster": _cluster,
    "keyspace": _keyspace,
}
_ALL = ("default", "all", "everything")


def info(session: RedisPeer, words: Command) -> RespReply:
    wanted = {text_of(word).lower() for word in words[1:]}
    everything = not wanted or not wanted.isdisjoint(_ALL)
    parts = [
        f"# {name.capitalize()}\r\n"
        + "".join(f"{field}:{value}\r\n" for field, value in section(session).items())
        for name, section in _SECTIONS.items()
        if everything or name in wanted
    ]
    return Verbatim("\r\n".join(parts))


# CONFIG


def _get(session: RedisPeer, words: Command) -> RespReply:
    for word in words[2:]:
        refusal = too_long(session, word)
        if refusal is not None:
            return refusal
    globs = [Glob(word.lower()) for word in words[2:]]
    found = {
        name.encode(): value.encode()
        for name, value in session.state.settings.items()
        if any(glob.matches(name.encode()) for glob in globs)
    }
    return MapReply(found)


def _set(session: RedisPeer, words: Command) -> RespReply:
    if len(words) % 2:
        return SYNTAX
    settings = session.state.settings
    changed: dict[str, str] = {}
    for at in range(2, len(words), 2):
        name, value = text_of(words[at]).lower(), text_of(words[at + 1])
        if name not in settings:
            return ErrorReply(
                f"ERR Unknown option or number of arguments for CONFIG SET - '{text_of(words[at])}'"
            )
        fault = _fault(name, value)
        if fault:
            return ErrorReply(
                f"ERR CONFIG SET failed (possibly related to argument '{text_of(words[at])}') - "
                + fault
            )
        changed[name] = _events(value) if name == "notify-keyspace-events" else value
    settings |= changed
    return OK


def _fault(name: str, value: str) -> str:
    """Why a setting can't have this value."""
    if name in _FIXED:
        return "can't set immutable config"
    if name in _NUMBERS and maybe_number(value.encode()) is None:
        return "argument couldn't be parsed into an integer"
    if name == "notify-keyspace-events" and not set(value) <= set(_EVENT_FLAGS):
        return "Invalid event class character. Use 'Ag$lshzxeKEtmdn'."
    if name == "appendonly" and value not in ("yes", "no"):
        return "argument must be 'yes' or 'no'"
    return ""


def _events(flags: str) -> str:
    """The flags as Redis gives them back."""
    classes = "A" if "A" in flags else "".join(c for c in _EVENT_CLASSES if c in flags)
    return classes + "".join(c for c in "KE" if c in flags)


def _resetstat(session: RedisPeer, words: Command) -> RespReply:
    session.state.connections_received = session.state.connections_rejected = 0
    return OK


def _part(
    name: str, arity: int, handler: Callable[[RedisPeer, Command], RespReply], summary: str
) -> CommandSpec:
    helps = name == "help"
    return CommandSpec(
        name=f"config|{name}",
        arity=arity,
        handler=handler,
        flags=("loading", "stale") if helps else ("admin", "noscript", "loading", "stale"),
        categories=("slow",) if helps else ("admin", "slow", "dangerous"),
        summary=summary,
        since="2.0.0",
        group="server",
        verb=None if helps else Verb.ADMIN,
    )


CONFIG_PARTS = {
    "get": _part("get", -3, _get, "Returns the effective values of configuration parameters."),
    "set": _part("set", -4, _set, "Sets configuration parameters in-flight."),
    "resetstat": _part("resetstat", 2, _resetstat, "Resets the server's statistics."),
    "help": _part("help", 2, lambda session, words: help_lines(_HELP), "Returns helpful text."),
}
