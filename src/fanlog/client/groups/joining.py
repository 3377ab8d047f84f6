"""How a client joins a group: to be iterated over, or to hand messages to a function."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Coroutine
from typing import Any, Protocol, get_args

from fanlog.client.arguments import as_reset, checked, topic_name
from fanlog.client.core.handling import Desk
from fanlog.client.core.member_core import MemberCore, followed
from fanlog.client.core.offset_commits import CommitMode
from fanlog.client.core.owned_partitions import OwnedPartitions
from fanlog.client.core.receiving import Receiving
from fanlog.client.groups.dead_letters import DeadLetterHost, DeadLetterPublisher
from fanlog.client.groups.handled_member import HandledMember
from fanlog.client.groups.member import GroupMember, MemberHost
from fanlog.client.groups.options import (
    ConsumeOptions,
    HandledOptions,
    MemberOptions,
    check_options,
    handler_rules,
)
from fanlog.client.groups.running import Handled, MessageHandler, run_member
from fanlog.client.notices import missing_policy
from fanlog.config import ClientOptions
from fanlog.errors import InvalidArgumentError
from fanlog.format import messages
from fanlog.format.patterns import is_pattern


class JoiningHost(MemberHost, DeadLetterHost, Protocol):
    """The client, as far as this needs it."""

    def take_number(self) -> int: ...


class Joining:
    def __init__(self, host: JoiningHost, topic: str, group: str, client: ClientOptions) -> None:
        self._host = host
        self._topic = topic
        self._group = group
        self._client = client

    def member(self, options: ConsumeOptions) -> GroupMember:
        check_options(options, ConsumeOptions.__annotations__)
        wanted = self._wanted(options)
        chosen = _member_options(options)
        host, key = self._host, self._host.take_number()
        owned = OwnedPartitions(
            host,
            Receiving(host, key, followed(wanted), chosen.on_gap),
            wanted.group,
            commit=chosen.commit,
            announces=chosen.on_assign is not None,
        )
        return GroupMember(host, MemberCore(host, key, wanted, owned), chosen)

    def run(
        self,
        handler: MessageHandler,
        concurrency: int,
        until: asyncio.Event | None,
        options: HandledOptions,
    ) -> Coroutine[Any, Any, Handled]:
        check_options(options, {*HandledOptions.__annotations__, "concurrency", "until"})
        rules = handler_rules(concurrency, options)
        if rules.dead_letter and rules.dead_letter == self._topic:
            raise InvalidArgumentError(
                f"The group reads {self._topic!r}, so its dead letters can't go there. Choose "
                "another dead_letter topic."
            )
        member = HandledMember(
            self._host,
            self._host.take_number(),
            self._wanted(options),
            _member_options(options),
            Desk(rules.order),
        )
        dead_letters = DeadLetterPublisher(self._host, self._group, rules.dead_letter)
        return run_member(member, handler, rules, dead_letters, until)

    def _wanted(self, options: ConsumeOptions) -> messages.JoinGroup:
        """The request to join. A member without a name gets one of its own."""
        group = self._group
        if not isinstance(group, str) or not group:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidArgumentError("A group needs a name: consume(topic, group='billing').")
        reset, start = as_reset(options.get("reset", "latest"))
        name = options.get("member", "")
        wanted = messages.JoinGroup(
            group=group,
            member=name or f"{self._client.name or 'member'}-{secrets.token_hex(4)}",
            target=topic_name(self._topic),
            wildcard=is_pattern(self._topic),
            reset=reset,
            session_seconds=options.get("session_seconds", 10.0),
            window_bytes=options.get("window_bytes") or self._client.window_bytes,
            static=bool(name),
            missing=missing_policy(options.get("missing", "wait")),
            start=start,
        )
        return checked(wanted)


def _member_options(options: ConsumeOptions) -> MemberOptions:
    commit = options.get("commit", "auto")
    if commit not in get_args(CommitMode):
        raise InvalidArgumentError(
            f"There is no commit mode {commit!r}: use one of {', '.join(get_args(CommitMode))}."
        )
    return MemberOptions(
        commit=commit,
        commit_interval_seconds=options.get("commit_interval_seconds", 1.0),
        on_assign=options.get("on_assign"),
        on_revoke=options.get("on_revoke"),
        on_gap=options.get("on_gap"),
    )
