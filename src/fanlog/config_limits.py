"""The settings `[limits]`: what one user, address or prefix may use."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from fanlog.config_live import LIVE


class LimitOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What each user and each address may use. 0 means no limit."""

    messages_per_second: Annotated[
        float,
        Meta(
            extra=LIVE,
            ge=0,
            description="Messages per second that a user or key may publish, on all its "
            "connections. Without logins it applies to an address. The rate of a single account "
            "overrides it.",
        ),
    ] = 0.0
    bytes_per_second: Annotated[
        float,
        Meta(
            extra=LIVE,
            ge=0,
            description="Bytes per second that a user or key may publish, as sent: compressed, "
            "and with keys and headers.",
        ),
    ] = 0.0
    burst_seconds: Annotated[
        float,
        Meta(
            gt=0,
            description="How many seconds' worth of a rate may come at once after an idle time.",
        ),
    ] = 1.0
    pause_seconds_max: Annotated[
        float,
        Meta(
            gt=0,
            le=10,
            description="Longest time for which the broker stops reading a connection above its "
            "rate. It refuses messages of a client that would have to wait longer. It is well "
            "below the time after which clients treat a silent broker as lost.",
        ),
    ] = 2.0
    connections_per_address: Annotated[
        int,
        Meta(
            ge=0,
            description="Open connections from one address, over all listeners. An IPv6 network "
            "of 64 bits counts as one address.",
        ),
    ] = 0
    connections_per_user: Annotated[
        int,
        Meta(
            extra=LIVE,
            ge=0,
            description="Open connections of one user or key, over all listeners: native and Redis "
            "connections, WebSockets and event streams. The limit of a single account overrides "
            "it.",
        ),
    ] = 0
    topics_per_user: Annotated[
        int,
        Meta(
            extra=LIVE,
            ge=0,
            description="Topics that one user or key may own. It owns the topics that it created.",
        ),
    ] = 0
    stored_bytes_per_user: Annotated[
        int,
        Meta(
            extra=LIVE, ge=0, description="Bytes that all topics of one owner may store together."
        ),
    ] = 0
    prefixes: Annotated[
        str,
        Meta(
            description="Quotas for prefixes of topic names, such as "
            "`team-a.:topics=100:stored_bytes=1000000000, logs.:stored_bytes=500000000`."
        ),
    ] = ""
    exempt_addresses: Annotated[
        str,
        Meta(
            description="Addresses and networks, separated by commas, that are exempt from limits "
            "and lock-out: proxies and edges, where many people share one address."
        ),
    ] = ""
    wrong_logins_max: Annotated[
        int,
        Meta(
            ge=1,
            description="Wrong logins of an address before it has to wait. Each further one "
            "doubles the wait, beginning with a second. It should not be too small, because "
            "clients retry a wrong key several times.",
        ),
    ] = 10
    lockout_seconds: Annotated[
        float, Meta(gt=0, description="Longest wait of an address after wrong logins.")
    ] = 900.0
    name_lockout_seconds: Annotated[
        float,
        Meta(
            gt=0,
            description="Longest wait before the next password for a user, if many addresses "
            "guess it. Addresses from which that user has logged in are exempt.",
        ),
    ] = 30.0


NO_LIMITS = LimitOptions()
