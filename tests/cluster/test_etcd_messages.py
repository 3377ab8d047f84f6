"""Answers of etcd's JSON gateway, as etcd 3.4 to 3.6 give them, and the classes of its faults."""

from __future__ import annotations

import pytest

from fanlog.cluster.coordination import Listing, Lost, Stored, Swapped
from fanlog.cluster.etcd_messages import (
    BadAnswerError,
    EtcdFault,
    FaultClass,
    range_end,
    read_fault,
    read_granted,
    read_kept,
    read_listing,
    read_swap,
    read_watch,
)

HEADER = b'"header":{"cluster_id":"14841639068965178418","revision":"7","raft_term":"2"}'
# Base64 of k and v.
KV = b'{"key":"aw==","create_revision":"6","mod_revision":"7","version":"2","value":"dg=="}'
STORED = Stored("k", b"v", 7)
BEFORE = Listing("cdf818194e3a8c32", 6, (Stored("k", b"u", 6), Stored("l", b"w", 5)))


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (503, b'{"error":"etcdserver: no leader","code":14}', FaultClass.NOT_NOW),
        (503, b'{"code":14,"message":"etcdserver: request timed out"}', FaultClass.NOT_NOW),
        (429, b'{"error":"etcdserver: too many requests","code":8}', FaultClass.NOT_NOW),
        (400, b'{"error":"something new","code":3}', FaultClass.NOT_NOW),
        (500, b"", FaultClass.NOT_NOW),
        (502, b"<html>bad gateway</html>", FaultClass.NOT_NOW),
        (200, b'{"error":{"grpc_code":14,"message":"no leader"}}', FaultClass.NOT_NOW),
        (200, b"[" * 100_000, FaultClass.NOT_NOW),
        (401, b'{"error":"etcdserver: invalid auth token","code":16}', FaultClass.LOGIN),
        (400, b'{"error":"revision of auth store is old","code":3}', FaultClass.LOGIN),
        (400, b'{"error":"etcdserver: user name is empty","code":3}', FaultClass.LOGIN),
        (404, b'{"error":"etcdserver: requested lease not found","code":5}', FaultClass.LEASE),
        (403, b'{"error":"etcdserver: permission denied","code":7}', FaultClass.OURS),
        (400, b'{"error":"authentication failed, invalid user","code":3}', FaultClass.OURS),
        (501, b'{"error":"unknown method","code":12}', FaultClass.OURS),
        (404, b"404 page not found\n", FaultClass.OURS),
    ],
)
def test_every_fault_has_a_class(status: int, body: bytes, kind: FaultClass) -> None:
    assert read_fault(status, body, has_login=True).kind is kind


def test_a_missing_login_is_ours_if_there_is_none_to_try() -> None:
    body = b'{"error":"etcdserver: user name is empty","code":3}'
    assert read_fault(400, body, has_login=False).kind is FaultClass.OURS


def test_listings_and_swaps_are_read() -> None:
    listing = read_listing(b"{" + HEADER + b',"kvs":[' + KV + b'],"count":"1"}', floor=3)
    assert listing == Listing("cdf818194e3a8c32", 7, (STORED,), 3)
    assert read_swap(b"{" + HEADER + b',"succeeded":true,"responses":[{}]}') == Swapped(7)
    lost = b'"responses":[{"response_range":{' + HEADER + b',"kvs":[' + KV + b"]}}]}"
    assert read_swap(b"{" + HEADER + b"," + lost) == Lost(STORED)
    absent = b',"responses":[{"response_range":{' + HEADER + b"}}]}"
    assert read_swap(b"{" + HEADER + absent) == Lost(None)


def test_a_line_of_a_watch_changes_the_listing() -> None:
    put = b'{"result":{' + HEADER + b',"events":[{"kv":' + KV + b"}]}}"
    after = read_watch(put, BEFORE)
    assert isinstance(after, Listing)
    assert after.revision == 7
    assert set(after.stored) == {STORED, BEFORE.stored[1]}
    gone = b'{"type":"DELETE","kv":{"key":"aw==","mod_revision":"7"}}'
    after = read_watch(b'{"result":{' + HEADER + b',"events":[' + gone + b"]}}", BEFORE)
    assert isinstance(after, Listing)
    assert after.stored == BEFORE.stored[1:]
    assert read_watch(b'{"result":{' + HEADER + b',"created":true}}', BEFORE) is None


def test_a_compacted_or_cancelled_watch_is_over() -> None:
    compacted = b'{"result":{' + HEADER + b',"canceled":true,"compact_revision":"9"}}'
    assert read_watch(compacted, BEFORE) == EtcdFault(FaultClass.NOT_NOW, "")
    fault = read_watch(b'{"error":{"grpc_code":14,"message":"etcdserver: no leader"}}', BEFORE)
    assert fault == EtcdFault(FaultClass.NOT_NOW, "etcdserver: no leader")


def test_leases_are_read() -> None:
    assert read_granted(b"{" + HEADER + b',"ID":"7587","TTL":"4"}') == 7587
    assert read_kept(b'{"result":{' + HEADER + b',"ID":"7587","TTL":"4"}}\n') is True
    assert read_kept(b'{"result":{' + HEADER + b',"ID":"7587"}}\n') is False


@pytest.mark.parametrize("body", [b"", b"[]", b"<html>", b'{"header":[]}', b'{"kvs":[{}]}'])
def test_what_is_no_answer_is_refused(body: bytes) -> None:
    with pytest.raises(BadAnswerError):
        read_listing(body, 0)


def test_more_keys_than_a_cluster_has_are_refused() -> None:
    with pytest.raises(BadAnswerError, match="more than"):
        read_listing(b"{" + HEADER + b',"kvs":[],"more":true}', 0)


def test_a_prefix_ends_before_the_next_key() -> None:
    assert range_end("/fanlog/a/") == b"/fanlog/a0"
