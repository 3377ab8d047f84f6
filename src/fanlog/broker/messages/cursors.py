"""A reader is a cursor: a partition, an offset, and who. A subscription is a set of cursors that
share one way out and one window. Nothing is queued for either."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fanlog.identity import Verb
from fanlog.model import Gap, SlowPolicy

if TYPE_CHECKING:
    from fanlog.broker.authority import Permit
    from fanlog.broker.messages.topics import Partition
    from fanlog.broker.messages.views import AnyView, TopicViews
    from fanlog.broker.ports import Keeper, Outlet, Reader
    from fanlog.format.messages import Position

UNLIMITED = 1 << 62


class BrokerSubscription:
    """`sent_bytes` may run up to `limit_bytes`, which the reader moves as it takes messages in;
    a piece that was begun is finished, so it can overshoot by one. Who reads is in `client`, as it
    calls itself, and in `durable` or `group`."""

    __slots__ = (
        "absent",
        "asked",
        "client",
        "closed",
        "cursors",
        "durable",
        "group",
        "held",
        "keeper",
        "key",
        "limit_bytes",
        "mirror",
        "opening_gaps",
        "outlet",
        "partitions",
        "paused",
        "permit",
        "policy",
        "reader",
        "sent_bytes",
        "target",
        "views",
        "wildcard",
    )

    def __init__(
        self,
        key: int,
        keeper: Keeper,
        outlet: Outlet,
        reader: Reader,
        target: str,
        *,
        wildcard: bool = False,
        policy: SlowPolicy = SlowPolicy.CATCH_UP,
        window_bytes: int = 0,
        durable: str = "",
        partitions: tuple[int, ...] | None = None,
        client: str = "",
        group: str = "",
        views: TopicViews | None = None,
    ) -> None:
        self.key = key
        self.keeper = keeper
        self.outlet = outlet
        self.reader = reader
        self.target = target
        self.wildcard = wildcard
        self.policy = policy
        self.durable = durable
        self.partitions = partitions
        self.client = client
        self.group = group
        # In which form its cursors read each topic; None: batches as they are.
        self.views = views
        self.sent_bytes = 0
        self.limit_bytes = window_bytes or UNLIMITED
        self.cursors: list[Cursor] = []
        self.paused: list[Cursor] | None = None
        self.opening_gaps: list[tuple[Gap, int]] = []
        # Where a reader that came back was in topics that do not exist at present.
        self.absent: dict[tuple[str, int], Position] | None = None
        # Of a reader with a pattern: what it may read of all that matches. None: everything.
        self.permit: Permit | None = None
        # What its reader was allowed so that it could begin, to be asked again.
        self.asked: tuple[tuple[Verb, str], ...] = ()
        self.closed = False
        # What happens to its topics before it starts: its reader does not know of it yet. None
        # once it does.
        self.held: list[Callable[[], None]] | None = None
        # Whether the reader keeps a mirror, and has to know all about its topics.
        self.mirror = False


class Cursor:
    """`offset` is the next record to send, `begin` was the first. A `live` cursor stands at the
    visible end, and there its offset is not kept up: the partition's is. One that is `behind`
    reads history, because it asked for it or because it was slow; its policy counts again once it
    is live. A `dropped` one has been taken out of its subscription, and does nothing more. With a
    `view` it is sent that form of the messages instead of the batches; as one of `several` of its
    reader it is sent them together with the others."""

    __slots__ = (
        "begin",
        "behind",
        "dropped",
        "live",
        "offset",
        "outlet",
        "partition",
        "several",
        "started",
        "subscription",
        "view",
    )

    def __init__(self, subscription: BrokerSubscription, partition: Partition, offset: int) -> None:
        self.subscription = subscription
        self.outlet = subscription.outlet
        self.partition = partition
        self.offset = self.begin = offset
        self.live = False
        self.behind = False
        self.started = False
        self.dropped = False
        self.view: AnyView | None = None
        self.several = False
