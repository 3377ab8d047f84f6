"""The settings of a node in a cluster: which cluster it belongs to, how others reach it, and how
many replicas must have what is acknowledged."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class ClusterOptions(msgspec.Struct, frozen=True, kw_only=True):
    """A node of a cluster. Without a cluster's name the broker runs alone."""

    name: Annotated[
        str, Meta(description="The cluster that this node belongs to. Empty: none.")
    ] = ""
    node_id: Annotated[str, Meta(description="Id of this node, unique in its cluster.")] = ""
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
    advertise_web: Annotated[
        str,
        Meta(
            description="Address of this node's web port for browsers, such as "
            "https://node-a.example.com: followers send them there while this node is the primary. "
            "Empty: made of web.host, web.port and advertise."
        ),
    ] = ""
    replicas: Annotated[
        int,
        Meta(ge=1, le=9, description="Nodes that keep a copy. Only a new cluster reads it."),
    ] = 3
    min_in_sync: Annotated[
        int,
        Meta(
            ge=1,
            le=9,
            description="Nodes that must have a message before it is acknowledged, the primary "
            "included. Only a new cluster reads it.",
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
            description="How soon the others notice that a node is gone. A shorter time makes "
            "failover faster, but a node that only pauses is more often replaced.",
        ),
    ] = 4
    grace_seconds: Annotated[
        float,
        Meta(
            ge=0,
            description="How long a primary must be missing in etcd before another takes over.",
        ),
    ] = 1.0
    follower_timeout_seconds: Annotated[
        float,
        Meta(
            ge=0.1,
            description="How long a follower may hold up a write before it leaves the in-sync set.",
        ),
    ] = 3.0
    handover_seconds: Annotated[
        float,
        Meta(
            ge=0,
            description="How long a stopping primary waits for a follower to take over.",
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
