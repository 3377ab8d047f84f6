"""`fanlog tail`: messages of a topic or a pattern as they come. Law: a gap is shown, always."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import stat
import sys
from dataclasses import dataclass
from typing import Annotated

import typer

from fanlog.cli.messages import Show, pick_show
from fanlog.cli.session import DEFAULT_URL, Url, with_client
from fanlog.cli.terminal import err, say_warning
from fanlog.client.aio import Client
from fanlog.client.arguments import as_start
from fanlog.client.core.receiving import OnGap
from fanlog.client.groups.member import GroupMember
from fanlog.client.notices import missing_policy
from fanlog.client.subscription import Subscription
from fanlog.errors import ClosedError, InvalidArgumentError, no_partition
from fanlog.format.patterns import is_pattern
from fanlog.model import Gap, GapReason, MissingPolicy, Start, TopicInfo

EXAMPLE = (
    "Examples: [bold]fanlog tail greetings[/], [bold]fanlog tail 'orders.>' --from 10m --json[/]"
)
_LINK_LOOK_SECONDS = 0.5
_PIPE_LOOK_SECONDS = 0.1
# How long nothing may come before `--no-follow` looks whether its end still exists.
_STALLED_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TailArguments:
    """What to show, and when to stop."""

    target: str
    partitions: tuple[int, ...] | None
    start: Start
    policy: str
    count: int
    follow: bool
    group: str
    missing: MissingPolicy


def tail(
    target: Annotated[
        str,
        typer.Argument(
            help="A topic, or a pattern: * matches one part of a name, > the rest.", metavar="TOPIC"
        ),
    ],
    *,
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", help="Only this partition. May be repeated.", min=0),
    ] = None,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            help="Start at earliest, latest, an offset, a time (ISO 8601), or an age (10m, 2h, "
            "1d). Default: latest; earliest with --no-follow.",
            metavar="START",
        ),
    ] = "",
    count: Annotated[
        int,
        typer.Option("--count", "-n", help="Stop after this many messages. 0 means never.", min=0),
    ] = 0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per line.")
    ] = False,
    values_only: Annotated[
        bool, typer.Option("--values-only", help="Print only the values, one per line.")
    ] = False,
    no_follow: Annotated[
        bool, typer.Option("--no-follow", help="Stop at the current end.")
    ] = False,
    policy: Annotated[
        str,
        typer.Option(
            "--policy",
            help="What happens when this reader is too slow.",
            metavar="catch-up|skip|disconnect",
        ),
    ] = "catch-up",
    group: Annotated[
        str,
        typer.Option("--group", help="Read as a member of this group, and store its offsets."),
    ] = "",
    missing: Annotated[
        str,
        typer.Option(
            "--missing",
            help="If the topic does not exist, wait for it, or fail.",
            metavar="wait|fail",
        ),
    ] = "wait",
    url: Url = DEFAULT_URL,
) -> None:
    """Show messages of a topic as they arrive.

    If the topic does not exist, tail waits for it. It creates no topic.
    """
    if group and (partition or no_follow or start.isdecimal()):
        raise InvalidArgumentError(
            "A group decides itself what its members read: with --group, leave out --partition "
            "and --no-follow, and use --from with earliest, latest, a time or an age."
        )
    if group and policy != "catch-up":
        raise InvalidArgumentError(
            "Members of a group always catch up and lose nothing: with --group, leave --policy out."
        )
    if as_json and values_only:
        raise InvalidArgumentError("--json and --values-only exclude each other.")
    wanted = TailArguments(
        target=target,
        partitions=tuple(partition) if partition else None,
        start=parse_start(start or ("earliest" if no_follow else "latest")),
        policy=policy,
        count=count,
        follow=not no_follow,
        group=group,
        missing=missing_policy(missing),
    )
    show = pick_show(as_json=as_json, values_only=values_only)

    async def work(client: Client) -> None:
        tailing = asyncio.create_task(_tail(client, wanted, show))
        unread = asyncio.create_task(_until_nobody_reads())
        watcher = asyncio.create_task(_tell_about_link(client))
        try:
            await asyncio.wait((tailing, unread), return_when=asyncio.FIRST_COMPLETED)
            if tailing.done():
                tailing.result()
        finally:
            watcher.cancel()
            unread.cancel()
            tailing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await tailing

    with_client(url, work, reconnect=True)


def parse_start(text: str, flag: str = "--from") -> Start:
    """A start as a flag has it."""
    return as_start(text, flag)


class _Ends:
    """How far `--no-follow` goes: the ends that the partitions had when it began."""

    def __init__(self, infos: list[TopicInfo], partitions: tuple[int, ...] | None) -> None:
        self._left: dict[tuple[str, int], int] = {
            (info.name, part.partition): part.visible_end
            for info in infos
            for part in info.partitions
            if partitions is None or part.partition in partitions
        }

    def __bool__(self) -> bool:
        return bool(self._left)

    def end_of(self, topic: str, partition: int) -> int:
        """The end of a partition; 0 where nothing more of it is wanted."""
        return self._left.get((topic, partition), 0)

    def passed(self, topic: str, partition: int, offset: int) -> None:
        """The next offset of this partition is now `offset`."""
        if offset >= self.end_of(topic, partition):
            self._left.pop((topic, partition), None)

    def topics(self) -> set[str]:
        return {topic for topic, _ in self._left}


async def read_present(client: Client, wanted: TailArguments, show: Show) -> None:
    """Shows all that is there now, and ends."""
    await _tail(client, wanted, show)


async def _tail(client: Client, wanted: TailArguments, show: Show) -> None:
    ends = None if wanted.follow else await _present_ends(client, wanted)
    if ends is not None and not ends:
        return

    def gap(found: Gap) -> None:
        say_warning(gap_sentence(found))
        if ends is not None:
            ends.passed(found.topic, found.partition, found.next)

    subscription = _subscription(client, wanted, gap)
    subscription.notices.on_notice = say_warning
    async with subscription:
        if wanted.follow and err().is_terminal:
            err().print(f"Following {wanted.target}. Press Ctrl-C to end.", style="dim")
        if ends is None:
            await _follow(subscription, wanted.count, show)
        else:
            await _read_up_to(client, subscription, ends, wanted.count, show)


def _subscription(client: Client, wanted: TailArguments, on_gap: OnGap) -> Subscription:
    if wanted.group:
        kind = wanted.start.kind
        return client.consume(
            wanted.target,
            group=wanted.group,
            reset=kind if kind in ("earliest", "latest") else wanted.start,
            commit="manual",
            on_gap=on_gap,
            missing=wanted.missing,
        )
    return client.subscribe(
        wanted.target,
        start=wanted.start,
        policy=wanted.policy,
        partitions=wanted.partitions,
        on_gap=on_gap,
        missing=wanted.missing,
    )


async def _follow(subscription: Subscription, count: int, show: Show) -> None:
    shown = 0
    with contextlib.suppress(ClosedError):
        while not count or shown < count:
            batch = await subscription.next_batch()
            messages = batch.messages[: count - shown] if count else batch.messages
            show(messages)
            shown += len(messages)
            if isinstance(subscription, GroupMember) and messages:
                await subscription.commit(messages[-1])


async def _read_up_to(
    client: Client, subscription: Subscription, ends: _Ends, count: int, show: Show
) -> None:
    shown = 0
    while ends and (not count or shown < count):
        try:
            batch = await subscription.next_batch(_STALLED_SECONDS)
        except TimeoutError:
            await _drop_what_is_gone(client, ends)
            continue
        end = ends.end_of(batch.topic, batch.partition)
        messages = [message for message in batch.messages if message.offset < end]
        messages = messages[: count - shown] if count else messages
        show(messages)
        shown += len(messages)
        ends.passed(batch.topic, batch.partition, batch.next_offset)


async def _present_ends(client: Client, wanted: TailArguments) -> _Ends:
    """The ends of what is wanted, without partitions that have nothing from the start on."""
    infos = await _infos(client, wanted.target)
    ends = _Ends(infos, wanted.partitions)
    for info in infos:
        missing = set(wanted.partitions or ()) - {part.partition for part in info.partitions}
        if missing and not is_pattern(wanted.target):
            raise no_partition(info.name, len(info.partitions), min(missing))
        for partition, offset in (await client.find_offsets(info.name, wanted.start)).items():
            ends.passed(info.name, partition, offset)
        for part in info.partitions:
            if part.start_offset >= part.visible_end:
                ends.passed(info.name, part.partition, part.visible_end)
    return ends


async def _infos(client: Client, target: str) -> list[TopicInfo]:
    if is_pattern(target):
        return await client.topics(target)
    return [await client.describe_topic(target)]


async def _drop_what_is_gone(client: Client, ends: _Ends) -> None:
    """What was deleted in the meantime will not come, and must not be waited for."""
    for topic in ends.topics():
        for part in (await client.describe_topic(topic)).partitions:
            ends.passed(topic, part.partition, part.start_offset)


async def _until_nobody_reads() -> None:
    """Ends when the other end of a pipe is closed, as `| head` does. To write the next message
    would tell it too, but that may be hours away."""
    output = sys.stdout.fileno()
    if not stat.S_ISFIFO(os.fstat(output).st_mode):
        await asyncio.Future[None]()
    poll = select.poll()
    poll.register(output, 0)
    while not poll.poll(0):  # noqa: ASYNC110 - the kernel has no event for it
        await asyncio.sleep(_PIPE_LOOK_SECONDS)


async def _tell_about_link(client: Client) -> None:
    """Says when the connection is lost and when it is back: silence could mean either."""
    connected = True
    while True:
        await asyncio.sleep(_LINK_LOOK_SECONDS)
        if client.connected != connected:
            connected = client.connected
            say_warning(
                "Connected again."
                if connected
                else "The connection to the broker is lost. Trying to reconnect."
            )


def gap_sentence(gap: Gap) -> str:
    """What a subscription missed, and why."""
    where = f"{gap.topic}, partition {gap.partition}"
    if gap.reason is GapReason.RESET:
        return (
            f"{where} continues at offset {gap.next}: a power cut took what was read, or it is in "
            "memory and the broker was restarted."
        )
    because = {
        GapReason.SKIPPED: "this reader is too slow, and its policy skips messages",
        GapReason.RETENTION: "they were deleted before they were read",
        GapReason.DAMAGED: "they are damaged on disk",
        GapReason.UNREADABLE: "their producer made a batch that can't be decoded",
    }[gap.reason]
    return f"{where}: offsets {gap.first} to {gap.next - 1} are missing: {because}."
