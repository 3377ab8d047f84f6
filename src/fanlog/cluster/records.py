"""The records in etcd: who is the primary of a shard, and which nodes are alive.

| key                         | value                                                           |
| --------------------------- | --------------------------------------------------------------- |
| `/fanlog/<name>/id`         | the random id of the cluster                                    |
| `/fanlog/<name>/shards/0`   | `ShardRecord`: changed only by a compare-and-swap               |
| `/fanlog/<name>/nodes/<id>` | `NodeRecord`, under a lease: it vanishes soon after its node    |

Values are JSON with a version, `{"version":1,…}`. A reader ignores fields that it does not know. A
release that changes the meaning of a record raises the version, and older ones refuse it."""

from __future__ import annotations

import re
import secrets
from typing import TypeVar

import msgspec

from fanlog.errors import ConfigError, FormatError

VERSION = 1
# A value is small: a larger one is not ours.
RECORD_BYTES_MAX = 64 * 1024
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]{0,62}[A-Za-z0-9])?")


class ShardRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who may do what in a shard. `primary` and `in_sync` are incarnations, `replicas` node ids."""

    epoch: int
    primary: str
    in_sync: tuple[str, ...]
    replicas: tuple[str, ...]
    min_in_sync: int
    replicas_wanted: int
    # The last reign that an operator began, knowing what may be lost. Only such a reign is taken
    # from an etcd that has gone back, or from another one.
    forced_epoch: int = 0
    # Which node's, and who began it, as user@host. Empty once the audit log has it.
    forced_node: str = ""
    forced_by: str = ""


class NodeRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A live node. `address` is that of its native listener."""

    node: str
    incarnation: str
    address: str
    release: str = ""
    zone: str = ""
    web: str = ""
    redis: str = ""
    # Why it should not be primary: it drains, or its disk is full. Empty: it may.
    unfit: str = ""
    # Its copy is not whole: it can't be the primary at all.
    copying: bool = False
    # Its logs have damage, and it hopes that another node has what is missing.
    damaged: bool = False
    # The newest shard record that it has seen: its mod revision, its epoch, and in which etcd.
    revision: int = 0
    epoch: int = 0
    etcd: str = ""
    # What an operator has to do, or why a change waits. Empty: nothing.
    problem: str = ""


class SeenRecord(msgspec.Struct, frozen=True):
    """A shard record, and the revision of etcd in which it was written."""

    record: ShardRecord
    revision: int


class _Envelope(msgspec.Struct, frozen=True):
    version: int


_Record = TypeVar("_Record", ShardRecord, NodeRecord)


def encode(record: ShardRecord | NodeRecord) -> bytes:
    """The value of a record in etcd."""
    return msgspec.json.encode({"version": VERSION, **msgspec.to_builtins(record)}, order=None)


def decode(value: bytes, kind: type[_Record]) -> _Record:
    """Reads a value. Raises FormatError."""
    if len(value) > RECORD_BYTES_MAX:
        raise FormatError(f"A record in etcd has {len(value)} bytes; no node wrote that.")
    try:
        version = msgspec.json.decode(value, type=_Envelope).version
        if version > VERSION:
            raise FormatError(
                f"A record in etcd has version {version}; this release reads {VERSION}. Update "
                "this node."
            )
        return msgspec.json.decode(value, type=kind)
    except msgspec.DecodeError as fault:
        raise FormatError(f"A record in etcd can't be read: {fault}") from None


def check_name(name: str, what: str) -> str:
    """Returns the id of a node or the name of a cluster, if it is a valid one."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{what} {name!r} is not valid: use 1 to 64 letters, digits, - and _, and begin and "
            "end with a letter or digit."
        )
    return name


def new_incarnation(node: str) -> str:
    """A name for a node's life from one start on: `a.1f2e3d4c`."""
    return f"{node}.{secrets.token_hex(4)}"


def node_of(incarnation: str) -> str:
    """The node of an incarnation: `a` for `a.1f2e3d4c`."""
    return incarnation.rpartition(".")[0]


def nodes_of(incarnations: tuple[str, ...] | frozenset[str]) -> frozenset[str]:
    """The nodes of several incarnations. A node counts once, however often it was started."""
    return frozenset(map(node_of, incarnations))


class ClusterKeys:
    """The keys of one cluster."""

    def __init__(self, name: str) -> None:
        self.prefix = f"/fanlog/{check_name(name, 'The cluster name')}/"
        self.id = f"{self.prefix}id"
        self.nodes = f"{self.prefix}nodes/"

    def shard(self, number: int = 0) -> str:
        return f"{self.prefix}shards/{number}"

    def node(self, node: str) -> str:
        return f"{self.nodes}{node}"
