"""The settings of an edge: its bus, and how much of it the edge keeps."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class EdgeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`fanlog edge`: a process without its own data, in front of a bus."""

    upstream: Annotated[
        str,
        Meta(
            description="The bus: fanlog://host:port, redis://host:port or nats://host:port; with "
            "TLS fanlogs://, rediss:// or tls://. Name several nodes of a cluster as "
            "fanlog://a:7420,b:7420,c:7420."
        ),
    ] = ""
    tls_ca_file: Annotated[
        str,
        Meta(
            description="PEM file with the authorities to trust for the certificate of the bus. "
            "Empty: those of this machine."
        ),
    ] = ""
    tls_certificate_file: Annotated[
        str, Meta(description="PEM file with the client certificate of the edge for the bus.")
    ] = ""
    tls_key_file: Annotated[
        str, Meta(description="PEM file with the private key of that certificate.")
    ] = ""
    tls_server_name: Annotated[
        str,
        Meta(
            description="Name that the certificate of the bus must have. Empty: the host of the "
            "address."
        ),
    ] = ""
    key_file: Annotated[
        str,
        Meta(
            description="File with the edge's key for a Fanlog broker. The key needs the role "
            "admin, because the edge acts for its clients. Without it the edge uses "
            "FANLOG_KEY_FILE or FANLOG_KEY, like commands."
        ),
    ] = ""
    linger_seconds: Annotated[
        float,
        Meta(
            ge=0,
            description="How long the edge follows a topic upstream after its last reader has "
            "left. Readers often return soon: a page is reloaded, a phone changes networks.",
        ),
    ] = 10.0
    history_seconds: Annotated[
        int,
        Meta(
            ge=1,
            description="With Redis upstream: how long Redis keeps a topic that nobody publishes "
            "to or follows.",
        ),
    ] = 86_400
    history_messages: Annotated[
        int,
        Meta(
            ge=1,
            description="With Redis or NATS upstream: messages of each topic that it keeps, for "
            "readers that resume.",
        ),
    ] = 10_000
    fetches_max: Annotated[
        int,
        Meta(
            ge=1,
            description="Blocks of history that the edge fetches from its upstream at a time. "
            "With more, readers that catch up would delay new messages.",
        ),
    ] = 8
