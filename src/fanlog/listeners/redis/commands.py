"""The table of commands, and COMMAND, which reads it out. It is long because it is a table: each
command has its arity, flags and help."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fanlog.format.globs import Glob
from fanlog.format.resp_replies import Distinct, ErrorReply, MapReply, RespReply, Simple
from fanlog.identity import Verb
from fanlog.listeners.redis import connection_commands as connection
from fanlog.listeners.redis import pubsub_commands as pubsub
from fanlog.listeners.redis import server_commands as server
from fanlog.listeners.redis.acl_commands import ACL_PARTS
from fanlog.listeners.redis.client_commands import CLIENT_PARTS
from fanlog.listeners.redis.peer import CommandSpec, RedisPeer

if TYPE_CHECKING:
    from fanlog.format.resp import Command

_ARGUMENTS_SHOWN_BYTES = 128

_HELP = """\
COMMAND <subcommand> [<arg> [value] [opt] ...]. Subcommands are:
(no subcommand)
    Return details about all Redis commands.
COUNT
    Return the total number of commands in this Redis server.
LIST
    Return a list of all commands in this Redis server.
INFO [<command-name> ...]
    Return details about multiple Redis commands.
    If no command names are given, documentation details for all
    commands are returned.
DOCS [<command-name> ...]
    Return documentation details about multiple Redis commands.
    If no command names are given, documentation details for all
    commands are returned.
HELP
    Prints this help."""


def find_command(words: Command) -> CommandSpec | ErrorReply:
    """The command, or Redis's error if it is unknown or has a wrong number of arguments."""
    command = _BY_WORD.get(words[0]) or _BY_WORD.get(words[0].lower())
    if command is None:
        return _unknown(words)
    if command.subcommands and len(words) > 1:
        part = command.subcommands.get(connection.text_of(words[1]).lower())
        if part is None:
            name = connection.text_of(words[1][:_ARGUMENTS_SHOWN_BYTES])
            title = command.name.upper()
            return ErrorReply(f"ERR unknown subcommand '{name}'. Try {title} HELP.")
        command = part
    if not command.fits(len(words)):
        return ErrorReply(f"ERR wrong number of arguments for '{command.name}' command")
    return command


def _unknown(words: Command) -> ErrorReply:
    shown = ""
    for word in words[1:]:
        if len(shown) >= _ARGUMENTS_SHOWN_BYTES:
            break
        shown += f"'{connection.text_of(word[: _ARGUMENTS_SHOWN_BYTES - len(shown)])}' "
    name = connection.text_of(words[0][:_ARGUMENTS_SHOWN_BYTES])
    return ErrorReply(f"ERR unknown command '{name}', with args beginning with: {shown}")


# COMMAND


def _described(command: CommandSpec) -> RespReply:
    first, last, step = command.keys
    return [
        command.name.encode(),
        command.arity,
        Distinct([Simple(flag) for flag in command.flags]),
        first,
        last,
        step,
        Distinct([Simple(f"@{category}") for category in command.categories]),
        Distinct([]),
        Distinct([]),
        Distinct([_described(part) for part in command.subcommands.values()]),
    ]


def _documented(command: CommandSpec) -> MapReply:
    words: dict[bytes, RespReply] = {
        b"summary": command.summary.encode(),
        b"since": command.since.encode(),
        b"group": command.group.encode(),
    }
    if command.subcommands:
        words[b"subcommands"] = MapReply(
            {part.name.encode(): _documented(part) for part in command.subcommands.values()}
        )
    return MapReply(words)


def _named(word: bytes) -> CommandSpec | None:
    name, _, part = connection.text_of(word).lower().partition("|")
    command = COMMANDS.get(name)
    return command if command is None or not part else command.subcommands.get(part)


def _command(session: RedisPeer, words: Command) -> RespReply:
    return [_described(command) for command in COMMANDS.values()]


def _count(session: RedisPeer, words: Command) -> RespReply:
    return len(COMMANDS)


def _info(session: RedisPeer, words: Command) -> RespReply:
    if len(words) == 2:
        return _command(session, words)
    found = map(_named, words[2:])
    return [None if command is None else _described(command) for command in found]


def _docs(session: RedisPeer, words: Command) -> RespReply:
    found = map(_named, words[2:]) if len(words) > 2 else COMMANDS.values()
    return MapReply({c.name.encode(): _documented(c) for c in found if c is not None})


def _list(session: RedisPeer, words: Command) -> RespReply:
    names = [name.encode() for name in COMMANDS]
    if len(words) == 2:
        return names
    if len(words) != 5 or words[2].upper() != b"FILTERBY":
        return connection.SYNTAX
    kind, value = words[3].upper(), words[4]
    if kind == b"PATTERN":
        refusal = pubsub.too_long(session, value)
        return refusal or [name for name in names if Glob(value.lower()).matches(name)]
    if kind == b"ACLCAT":
        category = connection.text_of(value).lower()
        return [c.name.encode() for c in COMMANDS.values() if category in c.categories]
    return [] if kind == b"MODULE" else connection.SYNTAX


def _part(
    name: str, arity: int, handler: Callable[[RedisPeer, Command], RespReply], summary: str
) -> CommandSpec:
    return CommandSpec(
        name=f"command|{name}",
        arity=arity,
        handler=handler,
        categories=("slow", "connection"),
        summary=summary,
        since="2.8.13",
        group="server",
    )


_COMMAND_PARTS = {
    "count": _part("count", 2, _count, "Returns a count of commands."),
    "docs": _part("docs", -2, _docs, "Returns documentary information about commands."),
    "info": _part("info", -2, _info, "Returns information about commands."),
    "list": _part("list", -2, _list, "Returns a list of command names."),
    "help": _part(
        "help", 2, lambda session, words: pubsub.help_lines(_HELP), "Returns helpful text."
    ),
}

# The table

_FAST = ("pubsub", "loading", "stale", "fast")
_FOLLOWING = ("pubsub", "noscript", "loading", "stale")
_CONNECTION = ("noscript", "loading", "stale", "fast", "no_auth", "allow_busy")


def _publishing(name: str, handler: Callable[[RedisPeer, Command], RespReply]) -> CommandSpec:
    shard = name == "spublish"
    return CommandSpec(
        name=name,
        arity=3,
        handler=handler,
        flags=_FAST,
        categories=("pubsub", "fast"),
        keys=(1, 1, 1) if shard else (0, 0, 0),
        summary=f"Posts a message to a {'shard ' if shard else ''}channel.",
        since="7.0.0" if shard else "2.0.0",
        group="pubsub",
    )


def _following(
    name: str, arity: int, handler: Callable[[RedisPeer, Command], RespReply], summary: str
) -> CommandSpec:
    shard = name in ("ssubscribe", "sunsubscribe")
    return CommandSpec(
        name=name,
        arity=arity,
        handler=handler,
        flags=_FOLLOWING,
        categories=("pubsub", "slow"),
        keys=(1, -1, 1) if shard else (0, 0, 0),
        summary=summary,
        since="7.0.0" if shard else "2.0.0",
        group="pubsub",
        subscribed=True,
        waits=True,
    )


def _simple(
    name: str,
    arity: int,
    handler: Callable[[RedisPeer, Command], RespReply],
    summary: str,
    since: str,
    *,
    flags: tuple[str, ...] = ("loading", "stale", "fast"),
    categories: tuple[str, ...] = ("fast", "connection"),
    group: str = "connection",
    subscribed: bool = False,
    at_once: bool = False,
    verb: Verb | None = None,
) -> CommandSpec:
    return CommandSpec(
        name=name,
        arity=arity,
        handler=handler,
        flags=flags,
        categories=categories,
        summary=summary,
        since=since,
        group=group,
        subscribed=subscribed,
        at_once=at_once,
        no_auth="no_auth" in flags,
        verb=verb,
    )


def _container(
    name: str,
    parts: dict[str, CommandSpec],
    handler: Callable[[RedisPeer, Command], RespReply],
    summary: str,
    group: str,
) -> CommandSpec:
    """A command that is nothing without a second word."""
    return CommandSpec(
        name=name,
        arity=-2,
        handler=handler,
        flags=(),
        summary=summary,
        since="2.4.0",
        group=group,
        subcommands=parts,
    )


_MULTI = ("noscript", "loading", "stale", "fast", "allow_busy")

COMMANDS: dict[str, CommandSpec] = {
    command.name: command
    for command in (
        _publishing("publish", pubsub.publish),
        _publishing("spublish", pubsub.spublish),
        _following("subscribe", -2, pubsub.subscribe, "Listens for messages of channels."),
        _following("unsubscribe", -1, pubsub.unsubscribe, "Stops listening to channels."),
        _following("psubscribe", -2, pubsub.psubscribe, "Listens for messages of patterns."),
        _following("punsubscribe", -1, pubsub.punsubscribe, "Stops listening to patterns."),
        _following("ssubscribe", -2, pubsub.ssubscribe, "Listens for shard channels."),
        _following("sunsubscribe", -1, pubsub.sunsubscribe, "Stops listening to shard channels."),
        _container(
            "pubsub", pubsub.PUBSUB_PARTS, _command, "A container of Pub/Sub commands.", "pubsub"
        ),
        _simple(
            "ping",
            -1,
            connection.ping,
            "Returns the server's liveliness response.",
            "1.0.0",
            flags=("fast",),
            subscribed=True,
        ),
        _simple("echo", 2, connection.echo, "Returns the given string.", "1.0.0"),
        _simple(
            "quit",
            -1,
            connection.quit_,
            "Closes the connection.",
            "1.0.0",
            flags=_CONNECTION,
            subscribed=True,
            at_once=True,
        ),
        _simple(
            "reset",
            1,
            connection.reset,
            "Resets the connection.",
            "6.2.0",
            flags=_CONNECTION,
            subscribed=True,
            at_once=True,
        ),
        _simple(
            "hello",
            -1,
            connection.hello,
            "Handshakes with the server.",
            "6.0.0",
            flags=_CONNECTION,
        ),
        _simple(
            "auth", -2, connection.auth, "Authenticates the connection.", "1.0.0", flags=_CONNECTION
        ),
        _container(
            "acl", ACL_PARTS, _command, "A container for Access List Control commands.", "server"
        ),
        _simple("select", 2, connection.select, "Changes the selected database.", "1.0.0"),
        _container(
            "client",
            CLIENT_PARTS,
            _command,
            "A container for client connection commands.",
            "connection",
        ),
        CommandSpec(
            name="command",
            arity=-1,
            handler=_command,
            categories=("slow", "connection"),
            summary="Returns detailed information about all commands.",
            since="2.8.13",
            group="server",
            subcommands=_COMMAND_PARTS,
        ),
        _simple(
            "info",
            -1,
            server.info,
            "Returns information and statistics about the server.",
            "1.0.0",
            flags=("loading", "stale"),
            categories=("slow", "dangerous"),
            group="server",
            verb=Verb.DESCRIBE,
        ),
        _simple(
            "time",
            1,
            server.time,
            "Returns the server time.",
            "2.6.0",
            categories=("fast",),
            group="server",
        ),
        *(
            _simple(
                name,
                -1,
                server.flush,
                f"Removes all keys from {which}; there are none.",
                "1.0.0",
                flags=("write",),
                categories=("keyspace", "write", "slow", "dangerous"),
                group="server",
                verb=Verb.ADMIN,
            )
            for name, which in (
                ("flushall", "all databases"),
                ("flushdb", "the current database"),
            )
        ),
        _container(
            "config",
            server.CONFIG_PARTS,
            _command,
            "A container for server configuration commands.",
            "server",
        ),
        _simple(
            "multi",
            1,
            connection.multi,
            "Starts a transaction.",
            "1.2.0",
            flags=_MULTI,
            categories=("fast", "transaction"),
            group="transactions",
            at_once=True,
        ),
        _simple(
            "exec",
            1,
            connection.exec_,
            "Executes all commands in a transaction.",
            "1.2.0",
            flags=("noscript", "loading", "stale", "skip_slowlog"),
            categories=("slow", "transaction"),
            group="transactions",
            at_once=True,
        ),
        _simple(
            "discard",
            1,
            connection.discard,
            "Discards a transaction.",
            "2.0.0",
            flags=_MULTI,
            categories=("fast", "transaction"),
            group="transactions",
            at_once=True,
        ),
    )
}

# As clients write them: in capitals or not.
_BY_WORD = {
    word.encode(): command for name, command in COMMANDS.items() for word in (name, name.upper())
}
