"""Accounts and permissions as plain values, for every layer. `security/` creates them and decides
by them."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

import msgspec


class Verb(StrEnum):
    """A permission. The name that goes with it is that of a topic, or of the thing that the verb
    names."""

    PUBLISH = "publish"
    # Read messages. The name may be a pattern.
    SUBSCRIBE = "subscribe"
    # See that a topic exists, its settings and its counters, but no message. An empty name is the
    # broker itself.
    DESCRIBE = "describe"
    # Create, grow, alter, truncate, compact and delete a topic.
    MANAGE = "manage"
    # Join, describe, reset and delete a group, or use a durable name: the name is the group's.
    GROUP = "group"
    # Work on a queue, and settle its jobs: the name is the queue's.
    QUEUE = "queue"
    # Publish under a producer's name, or a transaction's id: the name is that.
    PRODUCER = "producer"
    # Cancel a delayed message, or add and remove a schedule: the name is the id, or the schedule's.
    SCHEDULE = "schedule"
    # See who is in a topic, and be seen there.
    PRESENCE = "presence"
    # Send to a user, or disconnect one: the name is the user's.
    USER = "user"
    # Operate the broker: see and end connections, change settings. The name is empty.
    ADMIN = "admin"


class Role(StrEnum):
    """The role of an account. `security/rules.py` lists the verbs of each role."""

    ADMIN = "admin"
    PRODUCER = "producer"
    CONSUMER = "consumer"
    # Reads everything, and changes nothing.
    VIEWER = "viewer"
    # Sees topics, groups and counters, but no message: a viewer without payloads.
    OBSERVER = "observer"


class Rules(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The permissions of an account. A role allows its verbs on every public name. A list replaces
    the role for its verb: it has patterns of names, `!` before one denies, and a denial wins.
    `{user}` in a pattern is the account's name. Without a role only the lists allow anything."""

    role: Role | None = None
    publish: tuple[str, ...] | None = None
    subscribe: tuple[str, ...] | None = None
    manage: tuple[str, ...] | None = None
    groups: tuple[str, ...] | None = None
    queues: tuple[str, ...] | None = None
    # Without this list, who may publish to, read or manage a topic may describe it.
    describe: tuple[str, ...] | None = None


class Allowance(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The limits of an account. 0: the limit of the settings, or no limit."""

    messages_per_second: float = 0.0
    bytes_per_second: float = 0.0
    connections: int = 0
    topics: int = 0
    stored_bytes: int = 0


AccountKind = Literal["key", "user", "token", "certificate", "anonymous"]


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """The account of a peer. `name` is its name, and `id` the id of a key. It is a value: when
    keys, users or rules change, there is a new one. `credential` identifies one of the secrets of
    an account, such as a key's old and new one; it is not secret itself."""

    name: str
    kind: AccountKind
    rules: Rules
    id: str = ""
    expires_us: int = 0
    allowance: Allowance = Allowance()
    credential: str = ""


class Identity(msgspec.Struct, frozen=True):
    """The origin of a request: the user (empty: unknown), the address, the listener (`native`,
    `redis`, `web`) and the connection. `account` is the user's account; None without logins."""

    user: str = ""
    address: str = ""
    listener: str = ""
    connection: str = ""
    account: Account | None = None


class Login(msgspec.Struct, frozen=True, omit_defaults=True):
    """A login: a key, a user with a password, or a token. It is secret, so it does not appear in
    logs and errors."""

    key: str = ""
    user: str = ""
    password: str = ""
    token: str = ""

    def __repr__(self) -> str:
        kind = "key" if self.key else "token" if self.token else "password"
        return f"Login({kind} of {self.user!r})" if self.user else f"Login({kind})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("user", self.user)]
