"""The state of a cluster, for people and for programs: `fanlog cluster status`, `/v1/cluster` and
metrics."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class ClusterMember(msgspec.Struct, frozen=True, kw_only=True):
    """A node of a cluster. Only the primary knows the progress of its followers."""

    node: str
    role: Annotated[str, Meta(description="primary, in sync, replica or spare.")]
    alive: bool
    in_sync: Annotated[bool, Meta(description="Nothing is committed without it.")]
    incarnation: str = ""
    address: str = ""
    web: str = ""
    zone: str = ""
    release: str = ""
    remark: Annotated[
        str, Meta(description="What it waits for, or what an operator requested of it.")
    ] = ""
    level: Annotated[bool, Meta(description="It follows, and everything has been sent to it.")] = (
        False
    )
    behind_positions: Annotated[
        int, Meta(description="Turns of the primary that it has not synced. 0 if it is not level.")
    ] = 0
    behind_bytes: Annotated[
        int, Meta(description="Approximate bytes that it has not received yet.")
    ] = 0


class ClusterStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster. The first fields are from etcd, the others from the node that answers."""

    cluster: str
    epoch: Annotated[
        int, Meta(description="Epoch of the reign. Each new primary has a higher one.")
    ]
    primary: Annotated[str, Meta(description="The node that takes writes.")]
    min_in_sync: Annotated[int, Meta(description="With fewer nodes in sync nothing is stored.")]
    replicas_wanted: int
    nodes: list[ClusterMember]
    problems: list[str]
    node: Annotated[str, Meta(description="The node that answers.")] = ""
    role: Annotated[str, Meta(description="Its role: primary, follower or waiting.")] = ""
    etcd_reachable: bool = True
    reigns: Annotated[int, Meta(description="Reigns of this process since its start.")] = 0
    position: Annotated[int, Meta(description="The newest turn of this reign.")] = 0
    committed: Annotated[
        int, Meta(description="The newest turn that every node in sync has written.")
    ] = 0
    synced: Annotated[
        int, Meta(description="The newest turn that every node in sync has synced.")
    ] = 0
    uncommitted_bytes: int = 0
    moving_to: Annotated[str, Meta(description="The node that becomes the primary.")] = ""

    @property
    def in_sync(self) -> int:
        """How many nodes are in sync."""
        return sum(one.in_sync for one in self.nodes)


class MovePreview(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of a switch-over to a node, or that it was requested."""

    node: str
    primary: Annotated[str, Meta(description="The primary now.")]
    possible: bool
    reason: Annotated[str, Meta(description="Why it is not possible now.")] = ""
    level: bool = False
    behind_positions: Annotated[
        int, Meta(description="Turns that the node has not synced yet.")
    ] = 0
    behind_bytes: int = 0
    asked: Annotated[bool, Meta(description="The primary has been asked to hand over.")] = False
