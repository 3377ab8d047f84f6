"""The type of a topic's messages: what may be published there, and what a reader makes of it.

Law: what a typed topic accepts decodes as its type. A dataclass or a Struct does not check its
fields when it is made, so that each value is decoded once before it is published."""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import Annotated, Any, Generic, TypeVar, Union, cast, get_args, get_origin, is_typeddict

import msgspec

from fanlog.client.arguments import topic_name
from fanlog.client.message import Message
from fanlog.client.values import (
    CONTENT_TYPE,
    CONTENT_TYPES,
    Encoding,
    Headers,
    Value,
    accepts_none,
    check_encoding,
    decoder,
    encode_as,
    is_pydantic,
    type_name,
)
from fanlog.errors import InvalidArgumentError

T = TypeVar("T")


class MessageType(Generic[T]):
    """The type and the encoding of one topic's messages."""

    def __init__(self, topic: str, type: Any, encoding: Encoding) -> None:
        check_encoding(encoding)
        self.topic = topic_name(topic)
        self.type = type
        self.encoding: Encoding = encoding
        try:
            self._decoder = decoder(type, encoding)
        except TypeError as fault:
            raise InvalidArgumentError(
                f"Messages of {topic!r} can't be of type {type_name(type)}: {fault}."
            ) from fault
        self._as_it_is = type in (bytes, str)
        self._classes = _classes(type)
        # A pydantic model has checked its fields.
        self._checks = not self._as_it_is and not is_pydantic(type)

    @property
    def name(self) -> str:
        return type_name(self.type)

    def encoded(self, value: T, headers: Headers | None) -> tuple[Value, Headers | None]:
        """A value as it is published. One of another type is refused."""
        if value is None and accepts_none(self.type):
            return None, headers
        if self._classes is not None and not isinstance(value, self._classes):
            raise InvalidArgumentError(
                f"{self.topic!r} takes messages of type {self.name}, not {type(value).__name__}."
            )
        if self._as_it_is:
            return value, headers
        data, headers = encode_as(value, headers, self.encoding)
        if self._checks:
            try:
                self._decoder(cast(bytes, data))
            except (msgspec.MsgspecError, TypeError, ValueError) as fault:
                raise InvalidArgumentError(
                    f"{self.topic!r} takes messages of type {self.name}, and readers could not "
                    f"decode this one: {fault}."
                ) from fault
        return data, headers

    def all_encoded(self, values: Iterable[T]) -> tuple[list[Value], Headers | None]:
        """Values as they are published, and the headers that all of them have."""
        headers = None if self._as_it_is else {CONTENT_TYPE: CONTENT_TYPES[self.encoding]}
        return [self.encoded(value, None)[0] for value in values], headers

    def decode(self, message: Message) -> T:
        return message.decode(self.type)


def _classes(kind: Any) -> tuple[type, ...] | None:
    """The classes whose instances are of a type, as far as classes can tell; None if they can't."""
    origin = get_origin(kind)
    if origin is Annotated:
        return _classes(get_args(kind)[0])
    if origin in (Union, types.UnionType):
        parts = [_classes(part) for part in get_args(kind)]
        known = [part for part in parts if part is not None]
        return sum(known, ()) if len(known) == len(parts) else None
    if kind in (Any, object):
        return None
    if kind is None:
        return (types.NoneType,)
    if kind is float:
        return (float, int)
    found = kind if origin is None else origin
    if not isinstance(found, type) or is_typeddict(found) or getattr(found, "_is_protocol", False):
        return None
    return (found,)
