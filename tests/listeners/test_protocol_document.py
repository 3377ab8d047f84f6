"""docs/protocol.md says what the code does: every kind, struct, code and option is in it, and its
worked session works. `python -m tests.listeners.test_protocol_document` writes its tables anew."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from fanlog import identity, model
from fanlog.config import BrokerOptions, ListenerOptions
from fanlog.errors import BY_CODE
from fanlog.format import accounts, cluster_view, messages, replication, traces
from fanlog.format.batch import Batch, check_batch
from fanlog.format.frames import FETCHED_HEAD, FrameKind
from fanlog.listeners.native import HANDLERS
from fanlog.telemetry import snapshot
from tests.listeners.peers import Frame, Peer, acks_of, as_frame, serving

DOCUMENT = Path(__file__).parents[2] / "docs" / "protocol.md"
BEGIN, END = "<!-- structs: begin -->", "<!-- structs: end -->"
ACCOUNTS = [
    kind
    for kind in vars(accounts).values()
    if isinstance(kind, type)
    and issubclass(kind, msgspec.Struct)
    and kind.__module__ == accounts.__name__
]
OWN = [
    identity.Login,
    identity.Account,
    identity.Rules,
    identity.Allowance,
    *ACCOUNTS,
    replication.Follow,
    replication.Followed,
    replication.ReplicaTopics,
    replication.ReplicaTopic,
    replication.ReplicaPartition,
    replication.ReplicaEnds,
    replication.ReplicaEnd,
    replication.ReplicaEvent,
    model.TopicSettings,
    model.Start,
    model.TopicInfo,
    model.PartitionInfo,
    model.EpochInfo,
    model.DamagedRange,
    model.ReaderCounters,
    model.GroupInfo,
    model.GroupMemberInfo,
    model.GroupPartitionInfo,
    model.ResetStep,
    model.PendingMessage,
    model.ScheduleInfo,
    traces.ListTraces,
    traces.TracesPage,
    traces.SpanInfo,
    model.ConnectionInfo,
    snapshot.Snapshot,
    snapshot.Totals,
    snapshot.Levels,
    snapshot.Times,
    snapshot.HistogramData,
    snapshot.ProcessMetrics,
    snapshot.ListenerMetrics,
    snapshot.TopicMetrics,
    snapshot.GroupMetrics,
    snapshot.QueueMetrics,
    snapshot.ReaderMetrics,
    cluster_view.ClusterStatus,
    cluster_view.ClusterMember,
]


PLAIN = {
    inspect.FloatType: "float",
    inspect.StrType: "str",
    inspect.BytesType: "bytes",
    inspect.BoolType: "bool",
    inspect.NoneType: "nil",
}


def document() -> str:
    return DOCUMENT.read_text(encoding="utf-8")


def structs() -> list[type[msgspec.Struct]]:
    found = [
        kind
        for kind in vars(messages).values()
        if isinstance(kind, type)
        and issubclass(kind, msgspec.Struct)
        and kind.__module__ == messages.__name__
    ]
    return [*found, *OWN]


# The structs' tables


def named(kind: inspect.Type) -> str:
    kind = kind.type if isinstance(kind, inspect.Metadata) else kind
    match kind:
        case inspect.IntType(ge=least, le=most):
            bounds = f", {least} to {most}" if most is not None else f", {least} or more"
            return "int" + (bounds if least is not None else "")
        case inspect.VarTupleType() | inspect.ListType():
            return f"array of {named(kind.item_type)}"
        case inspect.TupleType():
            return f"({', '.join(map(named, kind.item_types))})"
        case inspect.DictType():
            return f"map of {named(kind.key_type)} to {named(kind.value_type)}"
        case inspect.UnionType():
            return " or ".join(named(one) for one in kind.types)
        case inspect.LiteralType() | inspect.EnumType():
            literal = isinstance(kind, inspect.LiteralType)
            values = kind.values if literal else [value.value for value in kind.cls]
            return " or ".join(f"`{value}`" for value in values)
        case inspect.StructType():
            return kind.cls.__name__
        case _:
            return PLAIN[type(kind)]


def default_of(field: inspect.Field) -> str:
    if field.default_factory is not msgspec.NODEFAULT:
        return "empty" if field.default_factory is dict else "its defaults"
    if field.default is msgspec.NODEFAULT:
        return "required"
    if isinstance(field.default, msgspec.Struct):
        return "its defaults"
    if field.default is None:
        return "nil"
    if field.default == ():
        return "empty"
    if isinstance(field.default, str):
        return f"`{field.default!s}`" if field.default else "empty"
    return str(field.default).lower()


def render() -> str:
    lines: list[str] = []
    for kind in structs():
        info = inspect.type_info(kind)
        assert isinstance(info, inspect.StructType)
        lines += [f"### {kind.__name__}", "", "| field | type | default |", "| --- | --- | --- |"]
        lines += [
            f"| `{field.encode_name}` | {named(field.type)} | {default_of(field)} |"
            for field in info.fields
        ]
        lines.append("")
    return "\n".join(lines).rstrip()


def test_the_document_has_every_struct_with_its_fields_types_and_defaults() -> None:
    text = document()
    assert text[text.index(BEGIN) + len(BEGIN) : text.index(END)].strip() == render()


def test_the_document_has_every_frame_kind() -> None:
    rows = re.findall(r"^\| 0x([0-9A-F]{2}) \| `?(\w+)`? \|", document(), flags=re.MULTILINE)
    assert {name: int(number, 16) for number, name in rows} == {k.name: int(k) for k in FrameKind}


def test_the_document_tells_the_direction_of_every_frame_kind() -> None:
    rows = re.findall(r"^\| 0x([0-9A-F]{2}) \| \w+ \| ([^|]+) \|", document(), flags=re.MULTILINE)
    to_broker = {*HANDLERS, FrameKind.HELLO, FrameKind.BATCH}
    for number, direction in rows:
        kind = FrameKind(int(number, 16))
        assert ("client" in direction.split()[0]) == (kind in to_broker), kind


def test_the_document_has_every_error_code() -> None:
    section = document().partition("## Error codes")[2].partition("\n## ")[0]
    codes = re.findall(r"^\| `(\w+)` \|", section, flags=re.MULTILINE)
    assert len(codes) == len(set(codes))
    assert set(codes) == set(BY_CODE)


@pytest.mark.parametrize(
    "option",
    [
        *sorted(set(ListenerOptions.__struct_fields__) - {"host", "port"}),
        "topics_max",
        "producers_max",
        "producer_runs_max",
        "producer_idle_seconds",
        "producer_names_max",
        "groups_max",
        "group_members_max",
        "session_seconds_min",
        "session_seconds_max",
        "revoke_seconds",
        "group_grace_seconds",
        *sorted(o for o in BrokerOptions.__struct_fields__ if o.startswith("queue")),
        "inbox_idle_seconds",
        "pending_bytes_pause",
        "pending_bytes_max",
        "batch_unpacked_bytes_max",
        "compression_ratio_max",
        "unpack_loop_bytes_max",
        "unpack_thread_bytes_max",
        *sorted(o for o in BrokerOptions.__struct_fields__ if o.startswith("transaction")),
    ],
)
def test_the_document_has_every_limit_with_its_default(option: str) -> None:
    given = {**msgspec.structs.asdict(ListenerOptions()), **msgspec.structs.asdict(BrokerOptions())}
    section = document().partition("## Limits")[2].partition("\n## ")[0]
    row = re.search(rf"^\| `{option}` \| ([^|]+) \|", section, flags=re.MULTILINE)
    assert row is not None
    assert amount(row[1]) == given[option]


def amount(text: str) -> float:
    number, _, unit = text.strip().replace(",", "").partition(" ")
    return float(number) * {"": 1, "s": 1, "KiB": 1024, "MiB": 1 << 20}[unit]


# The worked session


def session() -> Iterator[tuple[str, bytes]]:
    """Who speaks, and the frame's bytes."""
    section = document().partition("## A whole session")[2].partition("\n## ")[0]
    for block in re.findall(r"```text\n(.*?)```", section, flags=re.DOTALL):
        frames = re.findall(r"^(client|broker): \w+\n((?:[0-9a-f ]+\n)+)", block, re.MULTILINE)
        for who, hexed in frames:
            yield who, bytes.fromhex(hexed)


def settled(got: Frame) -> tuple[Any, ...]:
    """A frame without what may differ: the release, defaults, times and what covers them."""
    said: Any
    match got.kind:
        case FrameKind.WELCOME:
            welcome = got.read(messages.Welcome)
            said = msgspec.structs.replace(welcome, release="")
        case FrameKind.OK:
            opened = got.read(messages.TopicOpened)
            said = msgspec.structs.replace(opened, settings=model.TopicSettings())
        case FrameKind.ACK:
            said = [ack._replace(append_time_us=0) for ack in acks_of(got)]
        case FrameKind.FETCHED:
            batch = got.payload[FETCHED_HEAD.size :]
            header = check_batch(batch)._replace(append_time_us=0, header_crc=0)
            said = (got.payload[: FETCHED_HEAD.size], header, Batch(batch).values)
        case _:
            said = got.payload
    return got.kind, got.request, got.aux, said


async def play(peer: Peer) -> list[str]:
    kinds: list[str] = []
    for who, data in session():
        expected = as_frame(data[4], data, 0, len(data)) if who == "broker" else None
        if expected is None:
            await peer.send(data)
        else:
            got = await peer.frame()
            assert got is not None
            assert settled(got) == settled(expected)
        kinds.append(f"{who} {FrameKind(data[4]).name}")
    assert await peer.rest() == []
    return kinds


async def test_the_worked_session_works(data: Path) -> None:
    async with serving(data) as served:
        assert await play(await served.dial()) == [
            "client HELLO",
            "broker WELCOME",
            "client OPEN_TOPIC",
            "broker OK",
            "client BATCH",
            "broker ACK",
            "client FETCH",
            "broker FETCHED",
            "client GOODBYE",
        ]


if __name__ == "__main__":
    whole = document()
    before, _, rest = whole.partition(BEGIN)
    DOCUMENT.write_text(
        f"{before}{BEGIN}\n\n{render()}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8"
    )
