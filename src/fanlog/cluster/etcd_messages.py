"""The JSON gateway of etcd's v3 API (etcd 3.4 and later): bodies of requests, answers, and faults.

| path                    | request                              | answer                       |
| ----------------------- | ------------------------------------ | ---------------------------- |
| `/v3/kv/range`          | key, range_end, limit                | header, kvs                  |
| `/v3/kv/put`            | key, value, lease                    | header                       |
| `/v3/kv/txn`            | compare, success, failure            | header, succeeded, responses |
| `/v3/watch`             | key, range_end, start_revision       | lines: events                |
| `/v3/lease/grant`       | TTL                                  | ID, TTL                      |
| `/v3/lease/keepalive`   | ID                                   | a line: ID, TTL              |
| `/v3/lease/revoke`      | ID                                   | header                       |
| `/v3/auth/authenticate` | name, password                       | token                        |

Keys and values are base64, and numbers of 64 bits are texts. A field with its zero value is left
out: `succeeded` of a lost race, `TTL` of a lease that is gone. A line is `{"result": {…}}`, or, for
a fault in the middle, `{"error": {…}}`.

Law: no I/O here, so that the event loop and the thread of the lease share it."""

from __future__ import annotations

from enum import StrEnum
from http import HTTPStatus
from typing import Any, NamedTuple, TypeVar

import msgspec

from fanlog.cluster.coordination import Listing, Lost, Stored, Swapped

# More than a hundred nodes need; more would be somebody else's keys.
KEYS_MAX = 1000
ANSWER_BYTES_MAX = 4 * 1024 * 1024

RANGE = "/v3/kv/range"
PUT = "/v3/kv/put"
TXN = "/v3/kv/txn"
WATCH = "/v3/watch"
GRANT = "/v3/lease/grant"
KEEP_ALIVE = "/v3/lease/keepalive"
REVOKE = "/v3/lease/revoke"
AUTHENTICATE = "/v3/auth/authenticate"
# A watch on a member that has lost its leader ends, instead of staying open and silent.
WATCH_HEADERS = {"Grpc-Metadata-hasleader": "true"}


class FaultClass(StrEnum):
    """What a fault of etcd means for us. See `coordination`."""

    NOT_NOW = "not now"
    # The token has expired: log in again.
    LOGIN = "login"
    # The lease is gone: take a new one.
    LEASE = "lease"
    OURS = "ours"


class EtcdFault(NamedTuple):
    kind: FaultClass
    message: str


class _Header(msgspec.Struct):
    cluster_id: int = 0
    revision: int = 0


class _KeyValue(msgspec.Struct):
    key: bytes
    value: bytes = b""
    mod_revision: int = 0


class _Range(msgspec.Struct):
    header: _Header = msgspec.field(default_factory=_Header)
    kvs: list[_KeyValue] = []
    more: bool = False


class _TxnPart(msgspec.Struct):
    response_range: _Range | None = None


class _Txn(msgspec.Struct):
    header: _Header
    succeeded: bool = False
    responses: list[_TxnPart] = []


class _Event(msgspec.Struct):
    kv: _KeyValue
    type: str = "PUT"


class _Watch(msgspec.Struct):
    header: _Header = msgspec.field(default_factory=_Header)
    canceled: bool = False
    compact_revision: int = 0
    events: list[_Event] = []


class _WatchLine(msgspec.Struct):
    result: _Watch | None = None
    error: Any = None


class _Lease(msgspec.Struct):
    ID: int = 0  # etcd's name
    TTL: int = 0


class _LeaseLine(msgspec.Struct):
    result: _Lease | None = None
    error: Any = None


class _Token(msgspec.Struct):
    token: str = ""


_Answer = TypeVar("_Answer")


class BadAnswerError(Exception):
    """What came is no answer of etcd."""


# Requests


def range_body(key: str, *, prefix: bool = False) -> bytes:
    fields: dict[str, Any] = {"key": key.encode(), "limit": KEYS_MAX}
    if prefix:
        fields["range_end"] = range_end(key)
    return msgspec.json.encode(fields)


def range_end(prefix: str) -> bytes:
    """The first key after all that begin with `prefix`, which ends with a character of ASCII."""
    data = prefix.encode()
    return data[:-1] + bytes([data[-1] + 1])


def swap_body(key: str, expected: Stored | None, value: bytes | None) -> bytes:
    """Compares revision and value, then puts the new value; None deletes. If the comparison fails,
    the answer has the key as it is."""
    name = key.encode()
    if expected is None:
        compare = [_compare(name, target="CREATE", create_revision="0")]
    else:
        compare = [
            _compare(name, target="MOD", mod_revision=str(expected.revision)),
            _compare(name, target="VALUE", value=expected.value),
        ]
    if value is None:
        success: dict[str, Any] = {"request_delete_range": {"key": name}}
    else:
        success = {"request_put": {"key": name, "value": value}}
    failure = {"request_range": {"key": name}}
    return msgspec.json.encode({"compare": compare, "success": [success], "failure": [failure]})


def _compare(key: bytes, **fields: Any) -> dict[str, Any]:
    return {"key": key, "result": "EQUAL", **fields}


def put_body(key: str, value: bytes, lease: int) -> bytes:
    return msgspec.json.encode({"key": key.encode(), "value": value, "lease": str(lease)})


def watch_body(prefix: str, from_revision: int) -> bytes:
    request = {
        "key": prefix.encode(),
        "range_end": range_end(prefix),
        "start_revision": str(from_revision),
    }
    return msgspec.json.encode({"create_request": request})


def lease_body(lease: int) -> bytes:
    return msgspec.json.encode({"ID": str(lease)})


def grant_body(seconds: int) -> bytes:
    return msgspec.json.encode({"TTL": str(seconds)})


def login_body(user: str, password: str) -> bytes:
    return msgspec.json.encode({"name": user, "password": password})


# Answers. All of these raise BadAnswerError.


def read_listing(data: bytes, floor: int) -> Listing:
    answer = _read(data, _Range)
    if answer.more:
        raise BadAnswerError(f"more than {KEYS_MAX} keys are under the prefix of the cluster")
    return Listing(
        etcd=f"{answer.header.cluster_id:x}",
        revision=answer.header.revision,
        stored=tuple(map(_stored, answer.kvs)),
        floor=floor,
    )


def read_swap(data: bytes) -> Swapped | Lost:
    answer = _read(data, _Txn)
    if answer.succeeded:
        return Swapped(answer.header.revision)
    ranges = [part.response_range for part in answer.responses]
    if len(ranges) != 1:
        raise BadAnswerError("a comparison failed, and the answer does not say why")
    # A key that is not there is a range without anything in it.
    kvs = ranges[0].kvs if ranges[0] is not None else []
    return Lost(_stored(kvs[0]) if kvs else None)


def read_watch(line: bytes, before: Listing) -> Listing | EtcdFault | None:
    """What a line of a watch makes of a listing: the next one, None for no change, or why the
    watch is over. A fault without a message is a compaction: list again."""
    answer = _read(line, _WatchLine)
    result = answer.result
    if result is None:
        return read_fault(HTTPStatus.OK, line, has_login=True)
    if result.canceled or result.compact_revision:
        return EtcdFault(FaultClass.NOT_NOW, "")
    if not result.events:
        return None
    found = {stored.key: stored for stored in before.stored}
    for event in result.events:
        stored = _stored(event.kv)
        if event.type == "DELETE":
            found.pop(stored.key, None)
        else:
            found[stored.key] = stored
    revision = max(before.revision, result.header.revision)
    return before._replace(revision=revision, stored=tuple(found.values()), floor=before.floor)


def read_granted(data: bytes) -> int:
    """The id of a new lease."""
    lease = _read(data, _Lease)
    if not lease.ID:
        raise BadAnswerError("a new lease has no id")
    return lease.ID


def read_kept(line: bytes) -> bool | EtcdFault:
    """Whether a lease still lives."""
    answer = _read(line, _LeaseLine)
    if answer.result is None:
        return read_fault(HTTPStatus.OK, line, has_login=True)
    return answer.result.TTL > 0


def read_token(data: bytes) -> str:
    return _read(data, _Token).token


def _read(data: bytes, kind: type[_Answer]) -> _Answer:
    try:
        return msgspec.json.decode(data, type=kind, strict=False)
    except msgspec.DecodeError as fault:
        raise BadAnswerError(f"an answer can't be read: {fault}") from None


def _stored(kv: _KeyValue) -> Stored:
    return Stored(kv.key.decode("utf-8", "replace"), kv.value, kv.mod_revision)


# Faults

_NOT_FOUND, _DENIED, _UNIMPLEMENTED, _UNAUTHENTICATED = 5, 7, 12, 16
_TOKEN_IS_OLD = ("invalid auth token", "revision of auth store is old")
_OURS = (
    "authentication failed",
    "authentication is not enabled",
    "permission denied",
    "request is too large",
)


def read_fault(status: int, data: bytes, *, has_login: bool) -> EtcdFault:
    """The class of a fault, from the answer's status and body. A fault that is not known is *not
    now*."""
    code, message = _code_and_message(data)
    if code is None:
        if status == HTTPStatus.NOT_FOUND:
            return EtcdFault(
                FaultClass.OURS, "there is no etcd 3.4 or later with its JSON gateway here"
            )
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            return EtcdFault(FaultClass.OURS, f"it refuses the request (status {status})")
        return EtcdFault(FaultClass.NOT_NOW, f"it answers with status {status}")
    if code == _UNAUTHENTICATED or any(text in message for text in _TOKEN_IS_OLD):
        return EtcdFault(FaultClass.LOGIN, message)
    if "user name is empty" in message:
        return EtcdFault(FaultClass.LOGIN if has_login else FaultClass.OURS, message)
    if code == _NOT_FOUND and "lease not found" in message:
        return EtcdFault(FaultClass.LEASE, message)
    if code in (_DENIED, _UNIMPLEMENTED) or any(text in message for text in _OURS):
        return EtcdFault(FaultClass.OURS, message)
    return EtcdFault(FaultClass.NOT_NOW, message)


def _code_and_message(data: bytes) -> tuple[int | None, str]:
    """`{"code": 14, "message": …}`, `{"error": …, "code": 14}`, or, in a stream, `{"error":
    {"grpc_code": 14, "message": …}}`."""
    try:
        body: dict[str, Any] = msgspec.json.decode(data, type=dict[str, Any])
    except msgspec.DecodeError:
        return None, ""
    inner: Any = body.get("error")
    if isinstance(inner, dict):
        body = msgspec.convert(inner, dict[str, Any])
    code = body.get("grpc_code", body.get("code"))
    message = str(body.get("message") or body.get("error") or "it gives no reason")
    return (code if isinstance(code, int) else None), message[:300]
