"""The test vectors of the batch format: `vectors.json` holds them, docs/format.md shows them.

After the vectors change, `python -m tests.format.test_vectors` writes the document's part anew.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fanlog.errors import ChecksumError, FormatError
from fanlog.format.batch import Batch, check_batch, check_body, encode_batch, stamp
from fanlog.format.codecs import Codec
from fanlog.format.columns import EVENT_TIMES, HEADERS, KEY_NULLS, KEYS, SPARSE, VALUE_NULLS
from fanlog.format.header import HEADER_BYTES, read_header
from fanlog.format.sparse import thinned, widened

DOCUMENT = Path(__file__).parents[2] / "docs" / "format.md"
BEGIN, END = "<!-- vectors: begin -->", "<!-- vectors: end -->"
LINE_BYTES = 16
FLAGS = {KEYS: "keys", KEY_NULLS: "key nulls", VALUE_NULLS: "value nulls", HEADERS: "headers"}
FLAGS |= {EVENT_TIMES: "event times", SPARSE: "sparse"}
HEADER_FIELDS = (
    ("length", 4),
    ("kind", 1),
    ("version", 1),
    ("producer_epoch", 2),
    ("topic", 4),
    ("leader_epoch", 4),
    ("base_offset", 8),
    ("append_time_us", 8),
    ("producer_id", 8),
    ("first_sequence", 8),
    ("header_crc", 4),
    ("body_crc", 4),
    ("partition", 2),
    ("codec", 1),
    ("flags", 1),
    ("record_count", 4),
)


class Vector(NamedTuple):
    """One batch. `records` are as JSON has them: text for bytes, null for nothing. Where it is
    `sparse`, they are those at the `places` of a batch of as many as `of` says."""

    name: str
    about: str
    hex: str
    fields: dict[str, int]
    stamp: dict[str, int] | None
    codec: str
    values: list[str | None]
    keys: list[str | None] | None
    headers: list[dict[str, str] | None] | None
    event_times_us: list[int] | None
    sparse: dict[str, Any] | None = None

    @property
    def data(self) -> bytes:
        return bytes.fromhex(self.hex)

    def encode(self) -> bytes:
        data = encode_batch(
            [as_bytes(value) for value in self._whole(self.values)],
            keys=None if self.keys is None else [as_bytes(key) for key in self._whole(self.keys)],
            headers=None
            if self.headers is None
            else [{k: v.encode() for k, v in (h or {}).items()} for h in self.headers],
            event_times_us=self.event_times_us,
            codec=Codec[self.codec.upper()],
            **self.fields,
        )
        if self.stamp is None:
            return data
        data = stamp(data, topic=read_header(data).topic, **self.stamp)
        if self.sparse is None:
            return data
        batch = Batch(thinned(Batch(data), self.sparse["places"]))
        return widened(batch, batch.base_offset + self.sparse["span"])

    def _whole(self, column: list[str | None]) -> list[str | None]:
        """A column as it was before compaction."""
        if self.sparse is None:
            return column
        whole: list[str | None] = ["gone"] * self.sparse["of"]
        for place, entry in zip(self.sparse["places"], column, strict=True):
            whole[place] = entry
        return whole


def as_bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def load() -> list[Vector]:
    path = Path(__file__).with_name("vectors.json")
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return [Vector(**vector) for vector in found]


VECTORS = load()
each_vector = pytest.mark.parametrize("vector", VECTORS, ids=[v.name for v in VECTORS])


# What the code makes of them


@each_vector
def test_a_vector_decodes_to_what_it_says(vector: Vector) -> None:
    batch = Batch(vector.data)
    check_body(vector.data, batch.header)
    for field, value in (vector.fields | (vector.stamp or {})).items():
        assert getattr(batch.header, field) == value, field
    places = range(len(batch)) if vector.sparse is None else vector.sparse["places"]
    assert [*batch.offsets] == [batch.base_offset + place for place in places]
    span = len(batch) if vector.sparse is None else vector.sparse["span"]
    assert batch.next_offset == batch.base_offset + span
    assert Codec(batch.header.codec).label == vector.codec
    assert batch.values == [as_bytes(value) for value in vector.values]
    assert batch.keys == [as_bytes(key) for key in vector.keys or [None] * len(batch)]
    for i, headers in enumerate(vector.headers or [None] * len(batch)):
        expected = {k: v.encode() for k, v in (headers or {}).items()}
        assert batch.columns.headers(i) == expected
    times = batch.columns.event_times_us
    assert (None if times is None else times.tolist()) == vector.event_times_us
    if vector.event_times_us:
        assert batch.time_range_us == (min(vector.event_times_us), max(vector.event_times_us))
    else:
        assert batch.time_range_us == (batch.append_time_us, batch.append_time_us)


@each_vector
def test_a_vector_is_made_byte_for_byte_unless_a_library_packs_it(vector: Vector) -> None:
    made = vector.encode()
    if vector.codec == "none":
        assert made.hex() == vector.data.hex()
    else:
        assert Batch(made).values == Batch(vector.data).values


@each_vector
def test_a_stamped_vector_has_both_checksums(vector: Vector) -> None:
    if vector.stamp is None:
        assert read_header(vector.data).header_crc == 0
    else:
        check_batch(vector.data)


@each_vector
def test_no_flipped_bit_of_a_vector_goes_unseen(vector: Vector) -> None:
    stamped = stamp(vector.data, base_offset=1, append_time_us=2, leader_epoch=3, topic=4)
    for at in range(len(stamped)):
        for bit in range(8):
            bent = bytearray(stamped)
            bent[at] ^= 1 << bit
            with pytest.raises((ChecksumError, FormatError)):
                check_batch(bytes(bent))


def test_the_vectors_cover_every_codec_flag_and_a_stamp() -> None:
    assert {vector.codec for vector in VECTORS} == {codec.label for codec in Codec}
    flags = 0
    for vector in VECTORS:
        flags |= read_header(vector.data).flags
    assert flags == KEYS | KEY_NULLS | VALUE_NULLS | HEADERS | EVENT_TIMES | SPARSE
    assert any(vector.stamp for vector in VECTORS)
    assert any(read_header(vector.data).priority for vector in VECTORS)


# The document


class Part(NamedTuple):
    """A stretch of a batch, and what it is."""

    size: int
    meaning: str


def header_parts(data: bytes) -> Iterator[Part]:
    header = read_header(data)
    for field, size in HEADER_FIELDS:
        value = getattr(header, field)
        shown = f"{value:#x}" if field in ("kind", "header_crc", "body_crc", "flags") else value
        meaning = f"{field.replace('_', ' ')} {shown}"
        if field == "codec":
            meaning += f": {Codec(value).label}"
            if header.priority:
                meaning += f", priority {header.priority}"
        if field == "flags" and value:
            meaning += ": " + ", ".join(name for flag, name in FLAGS.items() if value & flag)
        yield Part(size, meaning)


def padded(size: int, meaning: str) -> Iterator[Part]:
    if size:
        yield Part(size, meaning)
    if size % 8:
        yield Part(-size % 8, "padding")


def body_parts(data: bytes) -> Iterator[Part]:
    header, columns = read_header(data), Batch(data).columns
    if header.flags & SPARSE:
        deltas = [offset - header.base_offset for offset in Batch(data).offsets]
        yield Part(8, f"span {header.span}")
        yield from padded(4 * len(deltas), f"deltas {deltas}")
    if header.flags & EVENT_TIMES:
        earliest, latest = Batch(data).time_range_us
        yield Part(8, f"earliest event time {earliest}")
        yield Part(8, f"latest event time {latest}")
    if header.codec:
        at = HEADER_BYTES + (16 if header.flags & EVENT_TIMES else 0)
        unpacked, packed = (int.from_bytes(data[i : i + 4], "little") for i in (at, at + 4))
        yield Part(4, f"unpacked bytes {unpacked}")
        yield Part(4, f"packed bytes {packed}")
        yield from padded(packed, f"columns, packed with {Codec(header.codec).label}")
        return
    binaries = [("values", columns.value_column), ("keys", columns.key_column)]
    if columns.header_columns is not None:
        slots, names, contents = columns.header_columns
        binaries += [("header names", names), ("header contents", contents)]
    for label, column in binaries:
        if column is None:
            continue
        if label == "header names":
            yield from padded(slots.nbytes, f"headers: first entry {slots.tolist()}")
        if column.validity is not None:
            there = [int(not column.is_null(i)) for i in range(header.record_count)]
            yield Part(column.validity.nbytes, f"{label}: validity {there}")
        yield from padded(column.offsets.nbytes, f"{label}: offsets {column.offsets.tolist()}")
        yield from padded(column.data.nbytes, f"{label}: data {column.data.tobytes().decode()!r}")
    if columns.event_times_us is not None:
        yield from padded(columns.event_times_us.nbytes, "event times")


def dump(data: bytes) -> Iterator[str]:
    """The bytes, a field or a piece a line; a long one has more lines."""
    at = 0
    for part in (*header_parts(data), *body_parts(data)):
        end, meaning = at + part.size, part.meaning
        while at < end:
            line = data[at : min(end, at + LINE_BYTES)]
            yield f"{at:04x}  {line.hex(' '):<47}  {meaning}".rstrip()
            at += len(line)
            meaning = ""
    assert at == len(data)


def table(vector: Vector) -> Iterator[str]:
    offsets = Batch(vector.data).offsets
    yield "| offset | key | value | headers | event time |"
    yield "| --- | --- | --- | --- | --- |"
    for i, value in enumerate(vector.values):
        key = vector.keys[i] if vector.keys else None
        headers = (vector.headers[i] if vector.headers else None) or {}
        time = vector.event_times_us[i] if vector.event_times_us else "append time"
        shown = ", ".join(f"`{k}`: `{v}`" for k, v in headers.items()) or "–"
        yield f"| {offsets[i]} | {cell(key)} | {cell(value)} | {shown} | {time} |"


def cell(text: str | None) -> str:
    return "null" if text is None else f"`{text}`" if text else "empty"


def render() -> str:
    lines: list[str] = []
    for vector in VECTORS:
        lines += [f"### {vector.name}", "", vector.about, "", "```text", *dump(vector.data), "```"]
        lines += ["", *table(vector), ""]
    return "\n".join(lines).rstrip()


def shown() -> str:
    text = DOCUMENT.read_text(encoding="utf-8")
    return text[text.index(BEGIN) + len(BEGIN) : text.index(END)].strip()


def test_the_document_shows_the_vectors_as_they_are() -> None:
    assert shown() == render()


def test_the_hex_in_the_document_is_the_vectors_hex() -> None:
    """Read as a person would who has only the document."""
    sections = re.split(r"^### ", shown(), flags=re.MULTILINE)[1:]
    found: dict[str, str] = {}
    for section in sections:
        name, _, text = section.partition("\n")
        lines = re.findall(r"^[0-9a-f]{4}  ((?:[0-9a-f]{2}(?: |$))+)", text, flags=re.MULTILINE)
        found[name] = "".join(lines).replace(" ", "")
    assert found == {vector.name: vector.hex for vector in VECTORS}


if __name__ == "__main__":
    whole = DOCUMENT.read_text(encoding="utf-8")
    before, _, rest = whole.partition(BEGIN)
    DOCUMENT.write_text(
        f"{before}{BEGIN}\n\n{render()}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8"
    )
