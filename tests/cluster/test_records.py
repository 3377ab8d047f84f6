"""Records in etcd: what is read again, what is refused, and what is kept out."""

from __future__ import annotations

import json

import pytest

from fanlog.cluster.records import (
    RECORD_BYTES_MAX,
    ClusterKeys,
    NodeRecord,
    ShardRecord,
    decode,
    encode,
    new_incarnation,
    node_of,
)
from fanlog.errors import ConfigError, FormatError
from tests.cluster.views import node, record


def test_records_are_read_as_they_were_written() -> None:
    assert decode(encode(record(forced_epoch=3)), ShardRecord) == record(forced_epoch=3)
    assert decode(encode(node("a.1", zone="z")), NodeRecord) == node("a.1", zone="z")


def test_a_record_has_a_version_and_plain_json() -> None:
    fields = json.loads(encode(record()))
    assert fields["version"] == 1
    assert fields["in_sync"] == ["a.1", "b.1", "c.1"]


def test_a_reader_ignores_fields_that_it_does_not_know() -> None:
    fields = {**json.loads(encode(record())), "weather": "fine"}
    assert decode(json.dumps(fields).encode(), ShardRecord) == record()


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"{}",
        b"[]",
        b'{"version":1}',
        b'{"version":2,"epoch":1}',
        b'{"version":1,"epoch":"5"}',
        b" " * (RECORD_BYTES_MAX + 1),
    ],
)
def test_what_is_no_record_is_refused(value: bytes) -> None:
    with pytest.raises(FormatError):
        decode(value, ShardRecord)


def test_an_incarnation_belongs_to_a_node_and_is_new_each_time() -> None:
    first, second = new_incarnation("node-7"), new_incarnation("node-7")
    assert first != second
    assert node_of(first) == node_of(second) == "node-7"


@pytest.mark.parametrize("name", ["", "a/b", "a.b", "-a", "a" * 65, "ä"])
def test_names_that_can_be_no_key_are_refused(name: str) -> None:
    with pytest.raises(ConfigError):
        ClusterKeys(name)
