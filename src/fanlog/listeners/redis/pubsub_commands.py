"""PUBLISH, SUBSCRIBE and their kin, with Redis's replies."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from fanlog.format.channels import pattern_over, topic_of
from fanlog.format.globs import Glob
from fanlog.format.resp_replies import NO_REPLY, ErrorReply, RespReply, Simple, subscription_push
from fanlog.identity import Verb
from fanlog.listeners.redis.peer import CommandSpec, RedisPeer
from fanlog.listeners.redis.publishing import NO_CHANNEL

if TYPE_CHECKING:
    from fanlog.format.resp import Command

logger = logging.getLogger("fanlog.listeners")

_HELP = """\
PUBSUB <subcommand> [<arg> [value] [opt] ...]. Subcommands are:
CHANNELS [<pattern>]
    Return the currently active channels matching a <pattern> (default: '*').
NUMPAT
    Return number of subscriptions to patterns.
NUMSUB [<channel> ...]
    Return the number of subscribers for the specified channels, excluding
    pattern subscriptions(default: no channels).
SHARDCHANNELS [<pattern>]
    Return the currently active shard level channels matching a <pattern> (default: '*').
SHARDNUMSUB [<shardchannel> ...]
    Return the number of subscribers for the specified shard level channel(s)
HELP
    Prints this help."""


def publish(session: RedisPeer, words: Command) -> RespReply:
    return session.publish(words[1], words[2], shard=False)


def spublish(session: RedisPeer, words: Command) -> RespReply:
    return session.publish(words[1], words[2], shard=True)


def _refusal(session: RedisPeer, name: bytes, kind: bytes) -> ErrorReply | None:
    """Why the connection can't have this subscription as well."""
    if session.permit.guarded and not session.permit.may(Verb.SUBSCRIBE, _target(name, kind)):
        return NO_CHANNEL
    options = session.state.options
    count = len(session.channels) + len(session.patterns) + len(session.shard_channels)
    if count >= options.subscriptions_max:
        return ErrorReply(
            "ERR This connection has as many subscriptions as redis.subscriptions_max allows. Open "
            "another."
        )
    if session.names_bytes + len(name) > options.request_bytes_max:
        return ErrorReply(
            "ERR The names that this connection follows have more than redis.request_bytes_max "
            "together. Open another connection."
        )
    return too_long(session, name) if kind == b"psubscribe" else None


def _target(name: bytes, kind: bytes) -> str:
    """The object of a permission check."""
    if kind == b"psubscribe":
        return pattern_over(name)
    return topic_of(name, shard=kind == b"ssubscribe")


def too_long(session: RedisPeer, pattern: bytes) -> ErrorReply | None:
    most = session.state.options.pattern_bytes_max
    if len(pattern) <= most:
        return None
    return ErrorReply(f"ERR A pattern has at most {most} bytes (redis.pattern_bytes_max).")


def _follow(
    session: RedisPeer,
    words: Command,
    kind: bytes,
    names: dict[bytes, None],
    subscribe: Callable[[bytes], bool],
) -> RespReply:
    for name in session.split(words):
        if name not in names:
            refusal = _refusal(session, name, kind)
            if refusal is not None:
                session.say(refusal)
                continue
            subscribe(name)
            names[name] = None
            _note(session, kind, name)
            session.names_bytes += len(name)
        session.push(subscription_push(kind, name, _count(session, kind), resp3=session.resp3))
    return NO_REPLY


def _unfollow(
    session: RedisPeer,
    words: Command,
    kind: bytes,
    names: dict[bytes, None],
    unsubscribe: Callable[[bytes], bool],
) -> RespReply:
    wanted = session.split(words if len(words) > 1 else [words[0], *names])
    for name in wanted:
        if name in names:
            unsubscribe(name)
            del names[name]
            _note(session, kind, name)
            session.names_bytes -= len(name)
        session.push(subscription_push(kind, name, _count(session, kind), resp3=session.resp3))
    if not wanted:
        session.push(subscription_push(kind, None, _count(session, kind), resp3=session.resp3))
    return NO_REPLY


def _note(session: RedisPeer, kind: bytes, name: bytes) -> None:
    if logger.isEnabledFor(logging.DEBUG):
        shown = name.decode(errors="backslashreplace")
        logger.debug("%s: %s %s", session.peer, kind.decode(), shown)


def _count(session: RedisPeer, kind: bytes) -> int:
    """The number of subscriptions in the reply: shard channels count separately."""
    if kind.startswith(b"s") and kind != b"subscribe":
        return len(session.shard_channels)
    return len(session.channels) + len(session.patterns)


def subscribe(session: RedisPeer, words: Command) -> RespReply:
    def begin(name: bytes) -> bool:
        return session.pubsub.subscribe(session, name, shard=False)

    return _follow(session, words, b"subscribe", session.channels, begin)


def unsubscribe(session: RedisPeer, words: Command) -> RespReply:
    def end(name: bytes) -> bool:
        return session.pubsub.unsubscribe(session, name, shard=False)

    return _unfollow(session, words, b"unsubscribe", session.channels, end)


def psubscribe(session: RedisPeer, words: Command) -> RespReply:
    def begin(name: bytes) -> bool:
        return session.pubsub.psubscribe(session, name)

    return _follow(session, words, b"psubscribe", session.patterns, begin)


def punsubscribe(session: RedisPeer, words: Command) -> RespReply:
    def end(name: bytes) -> bool:
        return session.pubsub.punsubscribe(session, name)

    return _unfollow(session, words, b"punsubscribe", session.patterns, end)


def ssubscribe(session: RedisPeer, words: Command) -> RespReply:
    if session.in_transaction:
        return ErrorReply("ERR SSUBSCRIBE isn't allowed for a DENY BLOCKING client")

    def begin(name: bytes) -> bool:
        return session.pubsub.subscribe(session, name, shard=True)

    return _follow(session, words, b"ssubscribe", session.shard_channels, begin)


def sunsubscribe(session: RedisPeer, words: Command) -> RespReply:
    def end(name: bytes) -> bool:
        return session.pubsub.unsubscribe(session, name, shard=True)

    return _unfollow(session, words, b"sunsubscribe", session.shard_channels, end)


def _channels(session: RedisPeer, words: Command, *, shard: bool) -> RespReply:
    if len(words) > 3:
        text = words[1].decode(errors="surrogateescape")
        return ErrorReply(
            f"ERR unknown subcommand or wrong number of arguments for '{text}'. Try PUBSUB HELP."
        )
    glob = None
    if len(words) == 3:
        refusal = too_long(session, words[2])
        if refusal is not None:
            return refusal
        glob = Glob(words[2])
    names = session.pubsub.channel_names(glob, shard=shard)
    return [name for name in names if _may_see(session, name, shard=shard)]


def _may_see(session: RedisPeer, name: bytes, *, shard: bool) -> bool:
    if not session.permit.guarded:
        return True
    return session.permit.may(Verb.DESCRIBE, topic_of(name, shard=shard))


def _numsub(session: RedisPeer, words: Command, *, shard: bool) -> RespReply:
    reply: list[RespReply] = []
    for name in words[2:]:
        seen = _may_see(session, name, shard=shard)
        reply += (name, session.pubsub.follower_count(name, shard=shard) if seen else 0)
    return reply


def _numpat(session: RedisPeer, words: Command) -> RespReply:
    return session.pubsub.pattern_count


def help_lines(text: str) -> RespReply:
    return [Simple(line) for line in text.splitlines()]


def _pubsub_part(
    name: str, arity: int, handler: Callable[[RedisPeer, Command], RespReply], summary: str
) -> CommandSpec:
    return CommandSpec(
        name=f"pubsub|{name}",
        arity=arity,
        handler=handler,
        flags=("loading", "stale") if name == "help" else ("pubsub", "loading", "stale"),
        categories=("slow",) if name == "help" else ("pubsub", "slow"),
        summary=summary,
        since="7.0.0" if name.startswith("shard") else "2.8.0",
        group="pubsub",
        verb=Verb.DESCRIBE if name == "numpat" else None,
    )


PUBSUB_PARTS = {
    "channels": _pubsub_part(
        "channels",
        -2,
        lambda session, words: _channels(session, words, shard=False),
        "Returns the active channels.",
    ),
    "numsub": _pubsub_part(
        "numsub",
        -2,
        lambda session, words: _numsub(session, words, shard=False),
        "Returns a count of subscribers to channels.",
    ),
    "numpat": _pubsub_part("numpat", 2, _numpat, "Returns a count of unique patterns."),
    "shardchannels": _pubsub_part(
        "shardchannels",
        -2,
        lambda session, words: _channels(session, words, shard=True),
        "Returns the active shard channels.",
    ),
    "shardnumsub": _pubsub_part(
        "shardnumsub",
        -2,
        lambda session, words: _numsub(session, words, shard=True),
        "Returns the count of subscribers of shard channels.",
    ),
    "help": _pubsub_part(
        "help", 2, lambda session, words: help_lines(_HELP), "Returns helpful text."
    ),
}
