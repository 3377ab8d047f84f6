"""The settings that bound what one user, address or prefix may use: `[limits]`."""

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
            description="Messages that a user or key may publish in a second, on all its "
            "connections. Without logins this counts by address. An account's own rate goes "
            "before it.",
        ),
    ] = 0.0
    bytes_per_second: Annotated[
        float,
        Meta(
            extra=LIVE,
            ge=0,
            description="Bytes that a user or key may publish in a second, as they are sent: "
            "compressed, and with keys and headers.",
        ),
    ] = 0.0
    burst_seconds: Annotated[
        float,
        Meta(
            gt=0,
            description="How many seconds' worth of a rate may come at once after a quiet time.",
        ),
    ] = 1.0
    pause_seconds_max: Annotated[
        float,
        Meta(
            gt=0,
            le=10,
            description="A connection above its rate is not read for so long at most. Who owes "
            "more than this is refused instead. It is well below the time after which clients "
            "take a silent broker for lost.",
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
            description="Open connections of one user or key, over all listeners: native and "
            "Redis connections, WebSockets and event streams. An account's own number goes "
            "before it.",
        ),
    ] = 0
    topics_per_user: Annotated[
        int,
        Meta(
            extra=LIVE,
            ge=0,
            description="Topics that one user or key may own: those that it created.",
        ),
    ] = 0
    stored_bytes_per_user: Annotated[
        int,
        Meta(extra=LIVE, ge=0, description="Bytes that the topics of one owner may keep together."),
    ] = 0
    prefixes: Annotated[
        str,
        Meta(
            description="Quotas of topics whose names begin alike, as in "
            "`team-a.:topics=100:stored_bytes=1000000000, logs.:stored_bytes=500000000`."
        ),
    ] = ""
    exempt_addresses: Annotated[
        str,
        Meta(
            description="Addresses and networks, separated by commas, that are never counted or "
            "locked out: proxies and edges, behind which many people have one address."
        ),
    ] = ""
    wrong_logins_max: Annotated[
        int,
        Meta(
            ge=1,
            description="Wrong logins of an address before it has to wait. Each further one "
            "doubles the wait, beginning with a second. Clients try a wrong key several times by "
            "themselves, so it is not too small.",
        ),
    ] = 10
    lockout_seconds: Annotated[
        float, Meta(gt=0, description="Longest wait of an address after wrong logins.")
    ] = 900.0
    name_lockout_seconds: Annotated[
        float,
        Meta(
            gt=0,
            description="Longest wait before the next password for a user whom many addresses "
            "try. Addresses from which that user has logged in do not wait for it.",
        ),
    ] = 30.0


NO_LIMITS = LimitOptions()
