"""RESP: commands however they are cut, mixed or broken; replies; pushes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fanlog.format.resp import (
    Command,
    CommandReader,
    PipelineReader,
    Publishes,
    RespLimits,
    split_line,
)
from fanlog.format.resp_replies import (
    Distinct,
    ErrorReply,
    MapReply,
    PushView,
    Raw,
    RespReply,
    Simple,
    Verbatim,
    encode_reply,
    subscription_push,
)

LIMITS = RespLimits(1024, 1 << 20, 65536, 4 << 20)
PIPELINE = PipelineReader()


def encoded(command: Sequence[bytes]) -> bytes:
    words = b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in command)
    return b"*%d\r\n" % len(command) + words


def flat(found: list[Command | Publishes]) -> list[list[bytes]]:
    """Runs as the commands that they are."""
    out: list[list[bytes]] = []
    for item in found:
        if isinstance(item, Publishes):
            out += [[b"PUBLISH", item.channel, value] for value in item.values]
        else:
            out.append(item)
    return out


def read(*parts: bytes, limits: RespLimits = LIMITS) -> tuple[list[list[bytes]], str]:
    reader = CommandReader(limits, PIPELINE)
    found: list[list[bytes]] = []
    for part in parts:
        found += flat(reader.feed(part))
    return found, str(reader.fault or "")


words = st.one_of(
    st.sampled_from(
        [b"", b"PING", b"a", b"\r\n*3\r\n", b"*", b">999", b"~1234", b"\r\n$", b"*1000"]
    ),
    st.binary(max_size=20),
)
publishes = st.tuples(st.just(b"PUBLISH"), st.sampled_from([b"a", b"b*", b""]), words)
commands = st.one_of(
    publishes, st.lists(words, min_size=1, max_size=5).map(tuple), st.just((b"PING",))
)


@given(st.lists(commands, max_size=30), st.lists(st.integers(0, 2000), max_size=6))
@example([(b"PUBLISH", b"a", b"x")] * 30, [45])
@example([(b"PUBLISH", b"a", b"x")] * 30, [5 * 33 - 3])
@example([(b"PUBLISH", b"a", b"x")] * 5 + [(b"PUBLISH", b"b", b"*")] * 5, [])
def test_commands_are_read_as_they_were_written_however_they_are_cut(
    wanted: list[tuple[bytes, ...]], cuts: list[int]
) -> None:
    data = b"".join(map(encoded, wanted))
    at = sorted({min(cut, len(data)) for cut in cuts})
    parts = [data[a:b] for a, b in zip([0, *at], [*at, len(data)], strict=True)]
    assert read(*parts) == ([list(command) for command in wanted], "")


@given(st.lists(st.binary(max_size=60), max_size=10))
def test_any_bytes_are_commands_or_a_fault_and_the_cuts_make_no_difference(
    parts: list[bytes],
) -> None:
    assert read(*parts) == read(b"".join(parts))


PIECES = [
    b"*",
    b"$",
    b"3",
    b"7",
    b"-1",
    b"\r\n",
    b"PUBLISH",
    b"a",
    b":5",
    b"+x",
    b">2",
    b"~1",
    b"0",
]


@given(st.lists(st.sampled_from(PIECES), max_size=60), st.integers(0, 100))
def test_almost_resp_is_read_alike_at_once_and_byte_by_byte(pieces: list[bytes], at: int) -> None:
    good = encoded([b"PUBLISH", b"a", b"x"]) * 4
    data = good + b"".join(pieces)
    whole = read(data)
    assert read(data[:at], data[at:]) == whole
    assert read(*(bytes([byte]) for byte in data)) == whole


@pytest.mark.parametrize(
    "odd",
    [
        b"+PUBLISH\r\n",
        b":7\r\n",
        b"*1\r\n$1\r\nx\r\n",
        b"$-1\r\n",
        b"_\r\n",
        b"#t\r\n",
        b"=5\r\ntxt:a\r\n",
    ],
    ids=repr,
)
def test_a_word_that_is_no_bulk_string_is_a_fault_in_a_pipeline_too(odd: bytes) -> None:
    good = encoded([b"PUBLISH", b"a", b"x"])
    for bad in (b"*3\r\n" + odd, b"*3\r\n$7\r\nPUBLISH\r\n$1\r\na\r\n" + odd):
        found, fault = read(good * 10 + bad + b"$1\r\nx\r\n" * 2 + good * 10)
        assert len(found) == 10
        assert fault.startswith("Protocol error: ")


def test_a_run_of_publishes_is_one_piece() -> None:
    reader = CommandReader(LIMITS, PIPELINE)
    one = encoded([b"publish", b"news", b"x"])
    found = reader.feed(one * 100 + one[:-5])
    assert [type(item) for item in found] == [Publishes]
    assert reader.begun
    found = reader.feed(one[-5:] + one * 50)
    assert found == [Publishes(b"news", [b"x"] * 51)]
    assert not reader.begun


sizes = st.sampled_from(
    [b"", b"x", b"\r\n*3\r\n$7\r\nPUBLISH\r\n$1\r\na\r\n$1\r\ny", b"z" * 9, b"u" * 10]
)


@given(st.lists(sizes, min_size=1, max_size=8), st.integers(0, 200), st.booleans())
@example([b"x"] * 5, 0, False)
@example([b"x", b"y", b"zz"], 0, False)
@example([encoded([b"PUBLISH", b"a", b"x"])[:-2]] * 2, 0, True)
def test_what_is_taken_for_whole_messages_is_what_the_parsers_read(
    values: list[bytes], cut: int, before: bool
) -> None:
    data = b"".join(encoded([b"PUBLISH", b"a", value]) for value in values)
    data = data[: max(1, len(data) - cut)]
    reader = CommandReader(LIMITS, PIPELINE)
    if before:
        # A run is known already, of messages of another size.
        assert reader.maybe_publishes(encoded([b"PUBLISH", b"a", b"1234"]) * 2) is not None
    found = reader.maybe_publishes(data)
    wanted = CommandReader(LIMITS, PIPELINE)
    read_slowly = [command for byte in data for command in flat(wanted.feed(bytes([byte])))]
    if found is not None:
        assert flat([Publishes(*found)]) == read_slowly
        assert not wanted.begun
    else:
        assert cut


@given(st.lists(st.sampled_from(PIECES), max_size=40), st.integers(0, 3))
def test_what_is_almost_a_message_is_left_to_the_parsers(pieces: list[bytes], runs: int) -> None:
    good = encoded([b"PUBLISH", b"a", b"x"])
    for end in (b"", b"$1\r\nx\r\n"):
        data = good * runs + b"*3\r\n$7\r\nPUBLISH\r\n$1\r\na\r\n" + b"".join(pieces) + end
        found = CommandReader(LIMITS, PIPELINE).maybe_publishes(data)
        slow = CommandReader(LIMITS, PIPELINE)
        read_slowly = [command for byte in data for command in flat(slow.feed(bytes([byte])))]
        if found is not None:
            assert flat([Publishes(*found)]) == read_slowly
            assert not slow.begun
            assert slow.fault is None


@pytest.mark.parametrize("size", [b"-1", b"-2", b"00", b"01", b"+1", b"", b" 1", b"1 ", b"x"])
def test_a_size_that_is_none_is_left_to_the_parsers(size: bytes) -> None:
    begin = b"*3\r\n$7\r\nPUBLISH\r\n$1\r\na\r\n$" + size
    for rest in (b"\r\n", b"\r\n\r\n", b"\r\nx\r\n", b"\r", b""):
        for count in (1, 2, 3):
            reader = CommandReader(LIMITS, PIPELINE)
            assert reader.maybe_publishes((begin + rest) * count) is None


LARGE = RespLimits(
    arguments_max=100, bulk_bytes_max=1000, inline_bytes_max=64, request_bytes_max=3000
)


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"*101\r\n", "invalid multibulk length"),
        (b"*2147483648\r\n", "invalid multibulk length"),
        (b"*1\r\n$1001\r\n", "invalid bulk length"),
        (b"*1\r\n$1000000000\r\n", "invalid bulk length"),
        (b"*4\r\n" + b"$1000\r\n" + b"x" * 1000 + b"\r\n", ""),
        (b"*4\r\n" + (b"$1000\r\n" + b"x" * 1000 + b"\r\n") * 3 + b"$1\r\n", "request larger than"),
        (b"x" * 65, "too big inline request"),
        (b"*" + b"1" * 65, "too big mbulk count string"),
        (b"*1\r\n$" + b"1" * 65, "too big bulk count string"),
    ],
    ids=lambda value: repr(value[:30]),
)
def test_limits_are_faults_as_soon_as_they_are_passed(data: bytes, fault: str) -> None:
    assert fault in read(data, limits=LARGE)[1]
    assert fault in read(*(bytes([byte]) for byte in data), limits=LARGE)[1]
    assert bool(fault) == bool(read(data, limits=LARGE)[1])


def test_nothing_is_made_ready_for_what_only_a_header_claims() -> None:
    good = encoded([b"PING"])
    for claim in (b"*999999999\r\n", b">999999999\r\n", b"~999999999\r\n", b"%999999999\r\n"):
        found, fault = read(good * 10 + b"*2\r\n$4\r\nECHO\r\n" + claim)
        assert len(found) == 10
        assert fault
        deep = b"*1\r\n" * 5000
        assert len(read(good * 10 + deep)[0]) == 10


def test_a_large_word_in_small_parts_is_joined_once() -> None:
    value = bytes(range(256)) * 4000
    data = encoded([b"PUBLISH", b"a", value])
    parts = [data[i : i + 1000] for i in range(0, len(data), 1000)]
    assert read(*parts) == ([[b"PUBLISH", b"a", value]], "")


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        (b"", []),
        (b"  a  b ", [b"a", b"b"]),
        (b"a\tb\x0bc", [b"a", b"b", b"c"]),
        (rb'"a\"b" "\x41\x4" "\n\r\t\b\a\q"', [b'a"b', b"Ax4", b"\n\r\t\b\aq"]),
        (rb"'a\'b' 'c\n'", [b"a'b", b"c\\n"]),
        (b"'a", None),
        (b'"a"b', None),
        (b"x'y'", [b"xy"]),
    ],
)
def test_lines_are_split_as_redis_does(line: bytes, wanted: list[bytes] | None) -> None:
    assert split_line(line) == wanted


@pytest.mark.parametrize(
    ("reply", "two", "three"),
    [
        (None, b"$-1\r\n", b"_\r\n"),
        (5, b":5\r\n", b":5\r\n"),
        (Simple("OK"), b"+OK\r\n", b"+OK\r\n"),
        (ErrorReply("ERR a\r\nb"), b"-ERR a  b\r\n", b"-ERR a  b\r\n"),
        (Verbatim("hé"), b"$3\r\nh\xc3\xa9\r\n", b"=7\r\ntxt:h\xc3\xa9\r\n"),
        (MapReply({b"a": 1}), b"*2\r\n$1\r\na\r\n:1\r\n", b"%1\r\n$1\r\na\r\n:1\r\n"),
        (Distinct([b"a"]), b"*1\r\n$1\r\na\r\n", b"~1\r\n$1\r\na\r\n"),
        ([[], [None]], b"*2\r\n*0\r\n*1\r\n$-1\r\n", b"*2\r\n*0\r\n*1\r\n_\r\n"),
        (Raw(b"+X\r\n"), b"+X\r\n", b"+X\r\n"),
    ],
    ids=repr,
)
def test_replies_have_their_form_in_each_version(
    reply: RespReply, two: bytes, three: bytes
) -> None:
    assert encode_reply(reply, resp3=False) == two
    assert encode_reply(reply, resp3=True) == three


@given(st.lists(st.one_of(st.none(), st.binary(max_size=30)), min_size=1, max_size=40))
def test_a_push_view_is_one_push_after_the_other(values: list[bytes | None]) -> None:
    for pattern in (None, b"p*"):
        view = PushView(b"message", b"ch", resp3=False, pattern=pattern)
        named = [b"message", b"ch"] if pattern is None else [b"message", pattern, b"ch"]
        assert view.render(values) == b"".join(encoded([*named, value or b""]) for value in values)
    three = PushView(b"message", b"ch", resp3=True).render([b"x"])
    assert three == b">" + encoded([b"message", b"ch", b"x"])[1:]


def test_confirmations_count() -> None:
    assert subscription_push(b"subscribe", b"a", 2, resp3=True) == (
        b">3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:2\r\n"
    )
    assert subscription_push(b"unsubscribe", None, 0, resp3=False) == (
        b"*3\r\n$11\r\nunsubscribe\r\n$-1\r\n:0\r\n"
    )
