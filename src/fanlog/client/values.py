"""Values of messages: objects to bytes and back. The header `content-type` names the format. Law:
bytes, str and None are stored as they are, without a header and without extra cost. Everything else
is JSON or msgpack. pydantic is recognised, and never imported.

| value | stored as |
| --- | --- |
| bytes, bytearray, memoryview | as it is |
| str | UTF-8 |
| None | nothing: a tombstone |
| anything that msgspec or pydantic encodes | JSON or msgpack, with `content-type` |
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Protocol, Union, cast, get_args, get_origin

import msgspec

from fanlog.errors import DecodeError, InvalidArgumentError

Encoding = Literal["json", "msgpack"]
Value = object
Headers = Mapping[str, bytes | str]

CONTENT_TYPE = "content-type"
CONTENT_TYPES: dict[Encoding, bytes] = {
    "json": b"application/json",
    "msgpack": b"application/msgpack",
}
# Types whose decoders are kept. A program has far fewer.
_DECODERS_MAX = 1024
# Content types that are remembered. There are two, and what others call them.
_CONTENT_TYPES_MAX = 256
# Faults of one message that an error names.
_FAULTS_MAX = 3


class _Pydantic(Protocol):
    """An attribute of every pydantic model and pydantic dataclass."""

    __pydantic_serializer__: Any
    __pydantic_validator__: Any


def is_pydantic(kind: object) -> bool:
    return hasattr(kind, "__pydantic_validator__") and hasattr(kind, "__pydantic_serializer__")


# Encoding


def is_plain(value: Value) -> bool:
    """Whether a value is stored as it is."""
    return isinstance(value, str | bytes | bytearray | memoryview)


def with_content_type(
    value: Value, headers: Headers | None, encoding: Encoding
) -> tuple[bytes, Headers]:
    """An object as bytes, and headers that name its format. A given `content-type` stays, and
    decides: it may be more exact, such as `application/vnd.order+json`."""
    given = None if headers is None else _given_encoding(headers)
    if given is not None and headers is not None:
        return encode(value, given), headers
    own = {CONTENT_TYPE: CONTENT_TYPES[encoding]}
    return encode(value, encoding), {**headers, **own} if headers else own


def encode_as(
    value: Value, headers: Headers | None, encoding: Encoding
) -> tuple[Value, Headers | None]:
    """The value that `publish(..., encoding=...)` stores. A str is encoded too."""
    check_encoding(encoding)
    if value is None:
        return None, headers
    if isinstance(value, bytes | bytearray | memoryview):
        raise InvalidArgumentError(
            "Bytes are published as they are: leave out `encoding`. To name their format, give "
            "headers={'content-type': '...'}."
        )
    if headers and _given_encoding(headers) not in (None, encoding):
        raise InvalidArgumentError(
            f"The header content-type and encoding={encoding!r} do not agree: leave out one of "
            "them."
        )
    return with_content_type(value, headers, encoding)


def _given_encoding(headers: Headers) -> Encoding | None:
    """The encoding that a `content-type` among the headers names."""
    for name, content in headers.items():
        if str(name).lower() == CONTENT_TYPE:
            text = content if isinstance(content, str) else bytes(content).decode(errors="replace")
            return encoding_of(_essence(text))
    return None


def as_bytes(given: object, what: str) -> bytes:
    """A key, a header, or a value that is no object, as it is stored."""
    if isinstance(given, str):
        try:
            return given.encode()
        except UnicodeEncodeError as fault:
            raise InvalidArgumentError(
                f"A {what} is text that UTF-8 can't hold: {fault}. Give the bytes themselves."
            ) from fault
    if isinstance(given, memoryview):
        return given.tobytes()
    if isinstance(given, bytes | bytearray):
        return bytes(given)
    raise InvalidArgumentError(
        f"A {what} is bytes or str, not {type(given).__name__}: encode it first."
    )


def own_headers(headers: Headers) -> dict[str, bytes]:
    for name in headers:
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidArgumentError(f"A header's name is a str, not {type(name).__name__}.")
    return {name: as_bytes(value, "header") for name, value in headers.items()}


def as_published(
    value: Value, headers: Headers | None, encoding: Encoding | None, default: Encoding
) -> tuple[Value, Headers | None]:
    """An immutable copy of a value, which can be published later."""
    if encoding is not None:
        return encode_as(value, headers, encoding)
    if value is None or type(value) is bytes:
        return value, headers
    if is_plain(value):
        return as_bytes(value, "value"), headers
    return with_content_type(value, headers, default)


def check_several(values: object) -> None:
    if isinstance(values, str | bytes | bytearray | memoryview | Mapping):
        given = type(cast(object, values)).__name__
        raise InvalidArgumentError(f"publish_many takes a list of values, not one {given}.")


def check_encoding(encoding: str) -> None:
    if encoding not in CONTENT_TYPES:
        raise InvalidArgumentError(
            f"There is no encoding {encoding!r}. Use one of {', '.join(CONTENT_TYPES)}."
        )


def encode(value: Value, encoding: Encoding) -> bytes:
    """An object as JSON or msgpack."""
    try:
        if is_pydantic(type(value)):
            return _encode_pydantic(value, encoding)
        return _ENCODERS[encoding](value)
    except (TypeError, ValueError, OverflowError, RecursionError) as fault:
        raise InvalidArgumentError(
            f"A value of type {type(value).__name__} can't be published as {encoding}: "
            f"{_without_stop(str(fault))}. Publish bytes or str, or what JSON can hold: a dict, a "
            "list, a dataclass, a msgspec Struct, an attrs class or a pydantic model."
        ) from fault


def _encode_pydantic(value: object, encoding: Encoding) -> bytes:
    data = bytes(cast(_Pydantic, type(value)).__pydantic_serializer__.to_json(value, by_alias=True))
    return data if encoding == "json" else msgspec.msgpack.encode(msgspec.json.decode(data))


def _as_plain(value: object) -> object:
    """Encodes a part of a value that msgspec does not know."""
    if is_pydantic(type(value)):
        return msgspec.json.decode(_encode_pydantic(value, "json"))
    raise TypeError(f"it holds an object of type {type(value).__name__}")


_ENCODERS: dict[Encoding, Callable[[object], bytes]] = {
    "json": msgspec.json.Encoder(enc_hook=_as_plain).encode,
    "msgpack": msgspec.msgpack.Encoder(enc_hook=_as_plain).encode,
}


# Decoding


# What decoding may raise.
FAULTS = (msgspec.MsgspecError, TypeError, ValueError, RecursionError)


def decode(value: bytes | None, content: str, kind: Any) -> Any:
    """A message's value as an object of `kind`, by its content type; JSON if it has none. None is
    a tombstone's. Raises one of `FAULTS`."""
    if value is None:
        if not accepts_none(kind):
            raise TypeError("it is a tombstone, which has no value")
        return None
    if (kind is bytes or kind is str) and not content.endswith(("json", "msgpack")):
        return value if kind is bytes else value.decode()
    return decoder(kind, encoding_of(content))(value)


def decode_error(
    fault: Exception,
    kind: Any,
    content: str,
    *,
    topic: str,
    partition: int,
    offset: int,
    has_value: bool,
) -> DecodeError:
    """The error that names the message and the fault."""
    expected, reason = type_name(kind), _reason(fault)
    source = _source(content) if has_value else ""
    return DecodeError(
        f"The message {topic}/{partition}@{offset} does not decode as {expected}: {reason}"
        f"{source}. "
        "Use message.value for the bytes as they are.",
        topic=topic,
        partition=partition,
        offset=offset,
        expected=expected,
        reason=reason,
    )


def content_type(headers: Mapping[str, bytes]) -> str:
    """What the publisher says the value is, without parameters; "" if it does not say."""
    for name, value in headers.items():
        if name.lower() == CONTENT_TYPE:
            return essence(value)
    return ""


@lru_cache(_CONTENT_TYPES_MAX)
def essence(content: bytes) -> str:
    """A content type without its parameters."""
    return _essence(content.decode(errors="replace"))


def _essence(content: str) -> str:
    return content.partition(";")[0].strip().lower()


def encoding_of(content: str) -> Encoding:
    """`application/msgpack`, and what else it is called. Whatever is not msgpack is taken for
    JSON: most publishers do not say."""
    return "msgpack" if content.endswith("msgpack") else "json"


def answer_encoding(value: Value, asked: Mapping[str, bytes]) -> Encoding | None:
    """How an object answers a request: in the request's own encoding, if it names one."""
    plain = value is None or is_plain(value)
    return None if plain or not (content := content_type(asked)) else encoding_of(content)


def decoder(kind: Any, encoding: Encoding) -> Callable[[bytes], Any]:
    """What decodes values of a type. Raises TypeError for a type that nothing decodes to."""
    try:
        return _cached_decoder(kind, encoding)
    except TypeError as fault:
        if "unhashable" not in str(fault):
            raise
        return _decoder(kind, encoding)


def _decoder(kind: Any, encoding: Encoding) -> Callable[[bytes], Any]:
    if is_pydantic(kind):
        return _pydantic_decoder(kind.__pydantic_validator__, encoding)
    try:
        info = msgspec.inspect.type_info(kind)
    except TypeError:
        adapter = _pydantic_adapter(kind)
        if adapter is None:
            raise
        return _pydantic_decoder(adapter, encoding)
    if isinstance(info, msgspec.inspect.CustomType):
        raise TypeError(
            f"{type_name(kind)} does not declare its fields: make it a dataclass, a msgspec "
            "Struct, an attrs class or a pydantic model"
        )
    if encoding == "json":
        return msgspec.json.Decoder(kind, dec_hook=_from_plain).decode
    return msgspec.msgpack.Decoder(kind, dec_hook=_from_plain).decode


_cached_decoder = lru_cache(_DECODERS_MAX)(_decoder)


def _from_plain(kind: Any, value: object) -> object:
    """A pydantic model somewhere within a type that msgspec decodes."""
    if not is_pydantic(kind):
        raise TypeError(f"nothing decodes to {type_name(kind)}")
    return kind.__pydantic_validator__.validate_json(msgspec.json.encode(value))


def _pydantic_decoder(validator: Any, encoding: Encoding) -> Callable[[bytes], Any]:
    if encoding == "json":
        return validator.validate_json

    def from_msgpack(value: bytes) -> Any:
        # By way of JSON: what pydantic accepts is written down for JSON.
        return validator.validate_json(msgspec.json.encode(msgspec.msgpack.decode(value)))

    return from_msgpack


def _pydantic_adapter(kind: Any) -> Any:
    """pydantic itself for what msgspec refuses, such as a union of two models. A program that names
    a model in a type has imported it."""
    pydantic = sys.modules.get("pydantic")
    if pydantic is None or not any(is_pydantic(part) for part in _parts(kind)):
        return None
    return pydantic.TypeAdapter(kind).validator


def _parts(kind: Any) -> list[Any]:
    return [kind, *(part for inner in get_args(kind) for part in _parts(inner))]


# Types


def accepts_none(kind: Any) -> bool:
    if kind in (None, NoneType, Any, object):
        return True
    if get_origin(kind) in (Union, UnionType, Annotated):
        return any(accepts_none(part) for part in get_args(kind))
    return False


def type_name(kind: Any) -> str:
    """A type as its program writes it."""
    if isinstance(kind, type) and not get_args(kind):
        return kind.__name__
    return str(kind).replace("typing.", "")


# Faults in words


def _reason(fault: Exception) -> str:
    """Why, and where in the value: msgspec says it by itself."""
    errors = getattr(fault, "errors", None)
    if callable(errors) and is_from_pydantic(fault):
        found = cast("list[dict[str, Any]]", errors())
        named = [f"{one['msg']} - at `{_path(one['loc'])}`" for one in found[:_FAULTS_MAX]]
        more = len(found) - len(named)
        return "; ".join(named) + (f"; and {more} more" if more else "")
    return _without_stop(str(fault))


def is_from_pydantic(fault: Exception) -> bool:
    return type(fault).__module__.partition(".")[0] in ("pydantic", "pydantic_core")


def _path(path: tuple[int | str, ...]) -> str:
    return "$" + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)


def _source(content: str) -> str:
    if content:
        return f" (its content-type is {content})"
    return " (it has no content-type, so it was read as JSON)"


def _without_stop(text: str) -> str:
    return text.rstrip(".")
