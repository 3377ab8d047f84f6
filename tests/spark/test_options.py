"""Options: what is read from them, and one sentence for each mistake."""

from __future__ import annotations

import datetime as dt

import pytest

from fanlog.errors import InvalidArgumentError
from fanlog.format.codecs import Codec
from fanlog.model import Start
from fanlog.spark.environment import DEFAULT_URL
from fanlog.spark.options import EARLIEST, LATEST, read_options, write_options


def test_a_source_needs_only_its_topics() -> None:
    options = read_options({"topics": "orders, payments"})
    assert options.topics == ("orders", "payments")
    assert options.url == DEFAULT_URL
    assert options.starting is None
    assert options.fail_on_data_loss


def test_what_is_loaded_by_path_is_a_topic() -> None:
    assert read_options({"path": "orders"}).topics == ("orders",)
    assert write_options({"path": "orders"}, streaming=False).topic == "orders"


def test_names_of_options_are_written_as_one_likes() -> None:
    options = read_options({"TOPICS": "a", "failondataloss": "False", "minpartitions": "8"})
    assert (options.fail_on_data_loss, options.min_partitions) == (False, 8)


def test_places_are_words_times_or_offsets() -> None:
    def starting(text: str, topic: str = "a", partition: int = 0) -> Start:
        places = read_options({"topics": "a", "startingOffsets": text}).starting
        assert places is not None
        return places.of(topic, partition)

    noon = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC).timestamp() * 1e6
    assert starting("earliest") == EARLIEST
    assert starting("Latest") == LATEST
    assert starting("2026-01-31T12:00:00Z") == Start("time", int(noon))
    assert starting("2026-01-31T13:00:00+01:00") == Start("time", int(noon))
    assert starting("2026-01-31 12:00") == Start("time", int(noon))
    by_partition = '{"a": {"0": 23, "1": "latest", "2": -2}, "b": "2026-01-31T12:00:00Z"}'
    assert starting(by_partition) == Start("offset", 23)
    assert starting(by_partition, "a", 1) == LATEST
    assert starting(by_partition, "a", 2) == EARLIEST
    assert starting(by_partition, "a", 3) == EARLIEST
    assert starting(by_partition, "b", 7) == Start("time", int(noon))


READ_MISTAKES = {
    "nothing to read": ({}, "`topics`"),
    "both": ({"topics": "a", "pattern": "a.*"}, "one of the options"),
    "a slip": ({"topics": "a", "startingOffset": "latest"}, "did you mean `startingOffsets`"),
    "nobody's": ({"topics": "a", "qqq": "a"}, "no option `qqq`: it has url,"),
    "Kafka's": ({"subscribe": "a"}, "Kafka's option of this name is `topics` here"),
    "Kafka's limit": ({"maxOffsetsPerTrigger": "9"}, "is `maxRecordsPerTrigger` here"),
    "a stream's": ({"topics": "a", "maxRecordsPerTrigger": "9"}, "is for streams"),
    "a pattern as a topic": ({"topics": "a.*"}, "with the option `pattern`"),
    "a bad address": ({"topics": "a", "url": "http://x"}, "not an address"),
    "not a number": ({"topics": "a", "minPartitions": "many"}, "`minPartitions` is 'many'"),
    "none": ({"topics": "a", "minPartitions": "0"}, "whole number of 1 or more"),
    "maybe": ({"topics": "a", "failOnDataLoss": "maybe"}, "give true or false"),
    "nowhere": ({"topics": "a", "startingOffsets": "soon"}, "earliest, latest, a time"),
    "no JSON": ({"topics": "a", "startingOffsets": '{"a": [1]}'}, "not JSON of topics"),
    "no partition": (
        {"topics": "a", "startingOffsets": '{"a": {"x": 1}}'},
        "'x' is not a partition",
    ),
    "no offset": ({"topics": "a", "startingOffsets": '{"a": {"0": -7}}'}, "-7 is not an offset"),
    "ends at the start": ({"topics": "a", "endingOffsets": "earliest"}, "can't be earliest"),
    "tls by itself": ({"topics": "a", "tls": "true"}, "begins with fanlogs://"),
}


@pytest.mark.parametrize("mistake", READ_MISTAKES)
def test_a_mistake_in_a_sources_options_is_one_sentence(mistake: str) -> None:
    given, said = READ_MISTAKES[mistake]
    with pytest.raises(InvalidArgumentError, match=said.replace("`", ".")):
        read_options(given, streaming=False)


def test_a_stream_has_no_end_and_no_folder() -> None:
    with pytest.raises(InvalidArgumentError, match="a stream has no end"):
        read_options({"topics": "a", "endingOffsets": "latest"}, streaming=True)
    with pytest.raises(InvalidArgumentError, match="a stream reads from the broker"):
        read_options({"topics": "a", "data": "/data"}, streaming=True)


def test_a_sinks_options() -> None:
    options = write_options({"topic": "a", "compression": "zstd"}, streaming=True)
    assert options.codec is Codec.ZSTD
    assert options.create_topics
    assert write_options({}, streaming=True).topic == ""


WRITE_MISTAKES = {
    "a pattern": ({"topic": "a.>"}, False, "name one topic"),
    "a source's option": ({"topics": "a"}, False, "did you mean `topic`"),
    "no codec": ({"compression": "rar"}, False, "one of none, zlib, zstd, lz4"),
    "a stream's own id": ({"transactionId": "x"}, True, "for batch writes"),
    "a long id": ({"transactionId": "x" * 300}, False, "255 bytes at most"),
}


@pytest.mark.parametrize("mistake", WRITE_MISTAKES)
def test_a_mistake_in_a_sinks_options_is_one_sentence(mistake: str) -> None:
    given, streaming, said = WRITE_MISTAKES[mistake]
    with pytest.raises(InvalidArgumentError, match=said.replace("`", ".")):
        write_options(given, streaming=streaming)


def test_the_broker_is_named_by_the_option_then_by_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FANLOG_URL", "fanlog://elsewhere:1")
    assert read_options({"topics": "t"}).url == "fanlog://elsewhere:1"
    assert write_options({"topic": "t"}, streaming=True).url == "fanlog://elsewhere:1"
    assert read_options({"topics": "t", "url": "fanlog://here:2"}).url == "fanlog://here:2"
    monkeypatch.setenv("FANLOG_URL", "")
    assert read_options({"topics": "t"}).url == DEFAULT_URL
    monkeypatch.setenv("FANLOG_URL", "http://here")
    with pytest.raises(InvalidArgumentError, match=r"FANLOG_URL is wrong: .*fanlog://host:port"):
        read_options({"topics": "t"})
