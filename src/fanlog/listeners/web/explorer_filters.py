"""Conditions on messages, for the explorer: on key, headers, payload, a path in JSON, and a trace.

Each condition says three things, the cheapest first: whether a batch may have a record that fits,
by its bytes as they are stored; the same by one look at a whole column; and whether one record
fits. There are no regular expressions: a user's text must not decide how long a search takes.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, cast

import msgspec

from fanlog.errors import InvalidArgumentError
from fanlog.format.globs import Glob
from fanlog.listeners.web.explorer_records import trace_of

if TYPE_CHECKING:
    from fanlog.format.columns import BinaryColumn
    from fanlog.listeners.web.explorer_records import BatchRecords

KeyMatch = Literal["contains", "exact", "prefix", "glob", "base64"]
# A longer column is searched in parts, so that other threads need not wait.
_COLUMN_BYTES_MAX = 1 << 20
# A longer value is searched in parts, for the same reason.
_PART_BYTES = 1 << 20
# A longer value is not parsed, and never matches a condition on JSON.
JSON_BYTES_MAX = 512 * 1024
_STEPS_MAX = 32
_NOT_JSON = (msgspec.DecodeError, RecursionError, ValueError)
_parse = msgspec.json.Decoder().decode


class MessageCondition(Protocol):
    def may_be_in(self, data: bytes) -> bool:
        """False if no record of a batch that is not compressed fits, by its bytes."""
        ...

    def possible(self, records: BatchRecords) -> bool:
        """False if no record of the batch fits."""
        ...

    def fits(self, records: BatchRecords, i: int) -> bool: ...


class Needle:
    """Text to search for in bytes. Without `case`, upper and lower case are the same."""

    __slots__ = ("_bytes", "_folded", "_overlap", "case")

    def __init__(self, text: str, *, case: bool) -> None:
        self.case = case
        # Bytes know the case of ASCII only. Other text is decoded first.
        self._folded = None if case or text.isascii() else text.casefold()
        self._bytes = _utf8(text) if case else _utf8(text).lower()
        # A character has up to four bytes, and may be more than one in the other case.
        self._overlap = 16 * len(text)

    def is_in(self, data: bytes) -> bool:
        if len(data) <= _PART_BYTES:
            return self._is_in(data)
        return any(
            self._is_in(data[at : at + _PART_BYTES + self._overlap])
            for at in range(0, len(data), _PART_BYTES)
        )

    def _is_in(self, data: bytes) -> bool:
        if self.case:
            return self._bytes in data
        if self._folded is None:
            return self._bytes in data.lower()
        return self._folded in data.decode(errors="replace").casefold()

    def may_be_in(self, data: bytes) -> bool:
        """Whether something in these bytes, text or not, may hold it."""
        if self._folded is not None or len(data) > _COLUMN_BYTES_MAX:
            return True
        return self._bytes in (data if self.case else data.lower())

    def may_be_in_column(self, column: BinaryColumn | None) -> bool:
        """Whether some entry of a column may hold it."""
        if column is None:
            return False
        return len(column.data) > _COLUMN_BYTES_MAX or self.may_be_in(column.data.tobytes())


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as fault:
        raise InvalidArgumentError(f"A condition has text that is not UTF-8: {fault}.") from None


class KeyCondition:
    __slots__ = ("_fits", "_needle")

    def __init__(self, text: str, match: KeyMatch, *, case: bool) -> None:
        self._needle: Needle | None = None
        self._fits: Callable[[bytes], bool]
        given = _utf8(text)
        if match == "contains":
            self._needle = needle = Needle(text, case=case)
            self._fits = needle.is_in
        elif match == "prefix":
            self._fits = lambda key: key.startswith(given)
        elif match == "glob":
            glob = Glob(given)
            self._fits = lambda key: glob.matches(key) if key else not given.strip(b"*")
        else:
            wanted = given if match == "exact" else _decoded(text)
            self._fits = lambda key: key == wanted

    def may_be_in(self, data: bytes) -> bool:
        return self._needle is None or self._needle.may_be_in(data)

    def possible(self, records: BatchRecords) -> bool:
        if records.key_column is None:
            return False
        return self._needle is None or self._needle.may_be_in_column(records.key_column)

    def fits(self, records: BatchRecords, i: int) -> bool:
        key = records.key(i)
        return key is not None and self._fits(key)


def _decoded(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise InvalidArgumentError(
            f"The key {text[:40]!r} is not base64. For a key that is text, use key_match=exact."
        ) from None


class HeaderCondition:
    """`name` for a header that is there, `name=value`, or `name~part` for one that contains it."""

    __slots__ = ("_fits", "_name", "_name_needle")

    def __init__(self, text: str, *, case: bool) -> None:
        at = min((text.index(sign) for sign in "=~" if sign in text), default=len(text))
        name, sign, wanted = text[:at].strip(), text[at : at + 1], text[at + 1 :].strip()
        if not name:
            raise InvalidArgumentError(
                f"{text[:80]!r} names no header. Write name, name=value or name~part."
            )
        self._name = _utf8(name).lower()
        self._name_needle = Needle(name, case=False)
        self._fits: Callable[[bytes], bool]
        if not sign:
            self._fits = lambda content: True
        elif sign == "=":
            exact = _utf8(wanted)
            self._fits = lambda content: content == exact
        else:
            self._fits = Needle(wanted, case=case).is_in

    def may_be_in(self, data: bytes) -> bool:
        return self._name_needle.may_be_in(data)

    def possible(self, records: BatchRecords) -> bool:
        columns = records.headers_column
        return columns is not None and self._name_needle.may_be_in_column(columns[1])

    def fits(self, records: BatchRecords, i: int) -> bool:
        return any(
            name.lower() == self._name and self._fits(content)
            for name, content in records.headers(i)
        )


class TraceCondition:
    """Messages of one trace, by its id."""

    __slots__ = ("_id", "_needle")

    def __init__(self, trace_id: str) -> None:
        self._id = trace_id.lower()
        self._needle = Needle(self._id, case=True)

    def may_be_in(self, data: bytes) -> bool:
        return self._needle.may_be_in(data)

    def possible(self, records: BatchRecords) -> bool:
        columns = records.headers_column
        return columns is not None and self._needle.may_be_in_column(columns[2])

    def fits(self, records: BatchRecords, i: int) -> bool:
        return trace_of(records.headers(i)) == self._id


class TextCondition:
    """Values that contain a text, whatever their format."""

    __slots__ = ("_needle",)

    def __init__(self, text: str, *, case: bool) -> None:
        self._needle = Needle(text, case=case)

    def may_be_in(self, data: bytes) -> bool:
        return self._needle.may_be_in(data)

    def possible(self, records: BatchRecords) -> bool:
        return self._needle.may_be_in_column(records.value_column)

    def fits(self, records: BatchRecords, i: int) -> bool:
        value = records.value(i)
        return value is not None and self._needle.is_in(value)


_STEP = re.compile(r'\.?(?:"([^"]*)"|([^\s.\[\]=<>!~"]+))|\[([0-9]{1,9})\]')
_SIGN = re.compile(r"\s*(==|=|!=|>=|<=|>|<|~)\s*")
_MISSING = object()


class _Comparison(NamedTuple):
    sign: str
    wanted: Any
    text: str


class JsonCondition:
    """A path in a JSON value, and what is there: `order.total > 10`, `items[0].name = tea`, or
    `order.note` for a path that is there."""

    __slots__ = ("_comparison", "_name", "_steps")

    def __init__(self, text: str) -> None:
        self._steps, rest = _path(text)
        self._comparison = _comparison(text, rest)
        names = [step for step in self._steps if isinstance(step, str)]
        self._name = _utf8(names[-1]) if names else b""

    def possible(self, records: BatchRecords) -> bool:
        column = records.value_column
        if len(column.data) > _COLUMN_BYTES_MAX:
            return True
        return self.may_be_in(column.data.tobytes())

    def may_be_in(self, data: bytes) -> bool:
        # A name may be written with escapes.
        return self._name in data or b"\\" in data

    def fits(self, records: BatchRecords, i: int) -> bool:
        value = records.value(i)
        if not value or len(value) > JSON_BYTES_MAX or not self.may_be_in(value):
            return False
        try:
            found = _at(_parse(value), self._steps)
        except _NOT_JSON:
            return False
        if found is _MISSING:
            return False
        return self._comparison is None or _compare(found, self._comparison)


def _path(text: str) -> tuple[list[str | int], str]:
    rest = text.strip().removeprefix("$")
    steps: list[str | int] = []
    while rest:
        found = _STEP.match(rest)
        if found is None:
            break
        quoted, name, index = found.groups()
        steps.append(int(index) if index is not None else (name if quoted is None else quoted))
        rest = rest[found.end() :]
    if not steps or len(steps) > _STEPS_MAX:
        raise _bad(text)
    return steps, rest


def _comparison(text: str, rest: str) -> _Comparison | None:
    if not rest.strip():
        return None
    found = _SIGN.match(rest)
    if found is None:
        raise _bad(text)
    written = rest[found.end() :].strip()
    if not written:
        raise _bad(text)
    try:
        wanted: Any = _parse(_utf8(written))
    except _NOT_JSON:
        wanted = written
    return _Comparison(found[1].replace("==", "="), wanted, written)


def _bad(text: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{text[:80]!r} is not a condition on JSON. Write a path, and what is there: "
        'order.total > 10, items[0].name = tea, "a name".b != null, note ~ part, or order.note for '
        "a path that is there."
    )


def _at(value: Any, steps: Sequence[str | int]) -> Any:
    for step in steps:
        if isinstance(step, str):
            if not isinstance(value, dict) or step not in value:
                return _MISSING
            value = cast("dict[str, Any]", value)[step]
        else:
            if not isinstance(value, list) or step >= len(cast("list[Any]", value)):
                return _MISSING
            value = cast("list[Any]", value)[step]
    return value


def _compare(found: Any, comparison: _Comparison) -> bool:
    sign, wanted, text = comparison
    if sign == "~":
        return _contains(found, text, wanted)
    if sign in ("=", "!="):
        return _same(found, wanted, text) == (sign == "=")
    if isinstance(found, str):
        # Such as times. The text stands for itself here, also if it is a number.
        wanted = wanted if isinstance(wanted, str) else text
    elif not _is_number(found) or not _is_number(wanted):
        return False
    if sign == ">":
        return found > wanted
    if sign == ">=":
        return found >= wanted
    return found < wanted if sign == "<" else found <= wanted


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _same(found: Any, wanted: Any, text: str) -> bool:
    if isinstance(found, bool) or isinstance(wanted, bool):
        return found is wanted
    return found == wanted or (isinstance(found, str) and found == text)


def _contains(found: Any, text: str, wanted: Any) -> bool:
    if isinstance(found, str):
        part = wanted if isinstance(wanted, str) else text
        return part.casefold() in found.casefold()
    if isinstance(found, list):
        return any(_same(entry, wanted, text) for entry in cast("list[Any]", found))
    return False
