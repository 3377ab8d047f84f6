"""The settings of a node in a cluster: which cluster it belongs to, how others reach it, and how
many replicas must have what is acknowledged."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class ClusterOptions(msgspec.Struct, frozen=True, kw_only=True):
    """A node of a cluster. Without a name the broker is one of its own."""

    name: Annotated[
        str, Meta(description="The cluster that this node belongs to. Empty: none.")
    ] = ""
    node_id: Annotated[
        str, Meta(description="The id of this node, which no other node of the cluster has.")
    ] = ""
    etcd: Annotated[
        str,
        Meta(
            description="Addresses of the members of etcd, separated by commas: "
            "http://10.0.0.1:2379,http://10.0.0.2:2379."
        ),
    ] = ""
    advertise: Annotated[
        str,
        Meta(
            description="Address of this node's native port for the other nodes: host:port. Empty: "
            "listener.host and listener.port."
        ),
    ] = ""
    replicas: Annotated[
        int,
        Meta(ge=1, le=9, description="Nodes that keep a copy. It counts when a cluster begins."),
    ] = 3
    min_in_sync: Annotated[
        int,
        Meta(
            ge=1,
            le=9,
            description="Nodes that must have a message before it is acknowledged, the primary "
            "included. It counts when a cluster begins.",
        ),
    ] = 2
    zone: Annotated[
        str, Meta(description="Where the node is: a rack, a room or a zone. For people.")
    ] = ""
    lease_seconds: Annotated[
        int,
        Meta(
            ge=2,
            le=120,
            description="So soon after a node is gone the others notice. A shorter time makes "
            "failover faster, and pauses of a node more often a failover.",
        ),
    ] = 4
    grace_seconds: Annotated[
        float,
        Meta(
            ge=0,
            description="So long a primary must be missing in etcd before another node takes over.",
        ),
    ] = 1.0
    follower_timeout_seconds: Annotated[
        float,
        Meta(
            ge=0.1,
            description="So long a follower may hold up a write before it is left out of the "
            "in-sync set.",
        ),
    ] = 3.0
    handover_seconds: Annotated[
        float,
        Meta(
            ge=0,
            description="So long a primary that stops waits for a follower to take over.",
        ),
    ] = 10.0
    key_file: Annotated[
        str,
        Meta(
            description="File with the key that this node shows to the others. It needs the role "
            "admin. Without it the node uses FANLOG_KEY_FILE or FANLOG_KEY."
        ),
    ] = ""
    tls_ca_file: Annotated[
        str,
        Meta(
            description="PEM file with the authorities to trust for the certificates of the other "
            "nodes. Empty: those of this machine."
        ),
    ] = ""
    tls_server_name: Annotated[
        str,
        Meta(
            description="Name that the certificates of the other nodes must have. Empty: the host "
            "of their address."
        ),
    ] = ""
    etcd_ca_file: Annotated[
        str, Meta(description="PEM file with the authorities to trust for etcd's certificates.")
    ] = ""
    etcd_certificate_file: Annotated[
        str, Meta(description="PEM file with this node's client certificate for etcd.")
    ] = ""
    etcd_key_file: Annotated[
        str, Meta(description="PEM file with the private key of that certificate.")
    ] = ""
    etcd_user: Annotated[str, Meta(description="User of etcd, where it has logins.")] = ""
    etcd_password_file: Annotated[str, Meta(description="File with the password of that user.")] = (
        ""
    )
