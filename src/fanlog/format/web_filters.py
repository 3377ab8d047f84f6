"""Filters of web subscriptions: a glob on the key, and headers with one of some values.

A record passes if all conditions fit. A filter has one canonical text; readers whose filters have
the same text share what is rendered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from fanlog.errors import InvalidArgumentError
from fanlog.format.globs import Glob

# A filter is evaluated for each record, and stands in each frame.
_KEY_CHARS_MAX = 256
_HEADERS_MAX = 8
_VALUES_MAX = 32
_TEXT_BYTES_MAX = 2048

_KeyGlob = Annotated[
    str,
    Meta(
        max_length=_KEY_CHARS_MAX,
        description="A glob that the key must match: `*`, `?`, `[a-z]`. A message without a key "
        "does not match.",
    ),
]


class FilterSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Conditions on key and headers. A message must meet all of them."""

    key: _KeyGlob | None = None
    headers: Annotated[
        dict[str, str | list[str]],
        Meta(
            max_length=_HEADERS_MAX,
            description="For each header its value, or a list of values of which it must have one.",
        ),
    ] = {}


class Filter:
    """A checked filter. `text` is its canonical form."""

    __slots__ = ("_glob", "_headers", "text")

    def __init__(self, key: str | None, headers: Mapping[str, Sequence[str]]) -> None:
        self._glob = None if key is None else Glob(key.encode())
        chosen = {
            name.lower(): sorted(set(values))
            for name, values in sorted(headers.items(), key=lambda item: item[0].lower())
        }
        self._headers = tuple(
            (name.encode(), frozenset(value.encode() for value in values))
            for name, values in chosen.items()
        )
        canonical: dict[str, object] = {}
        if key is not None:
            canonical["key"] = key
        if chosen:
            canonical["headers"] = chosen
        self.text = msgspec.json.encode(canonical).decode()

    @property
    def wants_headers(self) -> bool:
        return bool(self._headers)

    def passes(self, key: bytes | None, headers: Mapping[bytes, bytes]) -> bool:
        """`headers` are by their names in lower case."""
        if self._glob is not None and (key is None or not self._fits(key)):
            return False
        return all(headers.get(name) in values for name, values in self._headers)

    def passes_pairs(self, key: bytes | None, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """The same of headers as a record has them."""
        if not self._headers:
            return self.passes(key, {})
        return self.passes(key, {name.lower(): content for name, content in headers})

    def _fits(self, key: bytes) -> bool:
        glob = self._glob
        assert glob is not None
        # An empty key fits a pattern of stars.
        return glob.matches(key) if key else not glob.text.strip(b"*")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Filter) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"Filter({self.text})"


def make_filter(spec: FilterSpec | Mapping[str, object] | None) -> Filter | None:
    """The filter, or None if it lets everything through.

    >>> make_filter({"key": "a*", "headers": {"Type": ["y", "x"]}})
    Filter({"key":"a*","headers":{"type":["x","y"]}})
    """
    if spec is None:
        return None
    if not isinstance(spec, FilterSpec):
        try:
            spec = msgspec.convert(spec, FilterSpec)
        except msgspec.ValidationError as fault:
            raise InvalidArgumentError(
                f"The filter is not valid: {fault}. Write it like "
                '{"key": "order-*", "headers": {"type": ["paid", "sent"]}}.'
            ) from fault
    headers = {
        name: (values,) if isinstance(values, str) else tuple(values)
        for name, values in spec.headers.items()
    }
    if len({name.lower() for name in headers}) != len(headers):
        raise InvalidArgumentError(
            "The filter names a header twice. Upper and lower case are the same: name it once, "
            "with a list of values."
        )
    if any(not 1 <= len(values) <= _VALUES_MAX for values in headers.values()):
        raise InvalidArgumentError(f"A header of a filter has 1 to {_VALUES_MAX} values.")
    if spec.key is None and not headers:
        return None
    try:
        made = Filter(spec.key, headers)
    except UnicodeEncodeError as fault:
        raise InvalidArgumentError(f"The filter is not UTF-8: {fault}.") from fault
    if len(made.text.encode()) > _TEXT_BYTES_MAX:
        raise InvalidArgumentError(
            f"A filter has at most {_TEXT_BYTES_MAX} bytes: use fewer or shorter values."
        )
    return made
