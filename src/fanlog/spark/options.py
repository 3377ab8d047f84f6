"""The options of the format `fanlog`: read from Spark's strings, and checked on the driver.

Spark does not care how an option's name is written, so neither do the checks. The error for a
mistake is one sentence. It is raised before the first request to a broker.
"""

from __future__ import annotations

import datetime as dt
import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from fanlog.client.address import parse_urls
from fanlog.config import SparkOptions
from fanlog.errors import InvalidArgumentError
from fanlog.format.codecs import Codec
from fanlog.format.patterns import is_pattern
from fanlog.model import TRANSACTION_ID_BYTES_MAX, Start
from fanlog.spark.environment import broker_url

T = TypeVar("T")

LATEST = Start("latest")
EARLIEST = Start("earliest")
# What Kafka's source writes for the two ends.
_KAFKA_ENDS = {-1: LATEST, -2: EARLIEST}

# Where the key and the certificates are, never a secret itself: Spark shows options in its plans
# and in its web page.
_TLS_NAMES = {
    "tlsCaFile": "tls_ca_file",
    "tlsCertificateFile": "tls_certificate_file",
    "tlsKeyFile": "tls_key_file",
    "tlsServerName": "tls_server_name",
}
LOGIN_NAMES = ("keyFile", *_TLS_NAMES)
READ_NAMES = (
    "url",
    "topics",
    "pattern",
    "columns",
    "startingOffsets",
    "endingOffsets",
    "minPartitions",
    "maxRecordsPerTrigger",
    "maxBytesPerTrigger",
    "failOnDataLoss",
    "group",
    "data",
    "pushFilters",
    "fetchBytes",
    *LOGIN_NAMES,
)
WRITE_NAMES = (
    "url",
    "topic",
    "createTopics",
    "partitions",
    "compression",
    "transactionId",
    "transactionTimeoutSeconds",
    "inTimeOrder",
    *LOGIN_NAMES,
)
# What Spark itself puts among a source's or a sink's options.
_SPARKS_OWN = frozenset(
    ("path", "checkpointlocation", "queryname", "outputmode", "header", "inferschema", "paths")
)
# What Kafka's source and sink call it, for those who come from there.
_KAFKA_NAMES = {
    "kafka.bootstrap.servers": "url",
    "subscribe": "topics",
    "subscribepattern": "pattern",
    "assign": "topics",
    "startingtimestamp": "startingOffsets",
    "startingoffsetsbytimestamp": "startingOffsets",
    "endingtimestamp": "endingOffsets",
    "endingoffsetsbytimestamp": "endingOffsets",
    "maxoffsetspertrigger": "maxRecordsPerTrigger",
    "kafka.group.id": "group",
    "groupidprefix": "group",
}
_STREAM_ONLY = ("maxRecordsPerTrigger", "maxBytesPerTrigger", "group")
_BATCH_ONLY = ("data", "pushFilters")
_SECRETS = frozenset(("key", "password", "token"))


@dataclass(frozen=True, slots=True)
class ScanPositions:
    """Where to begin or to end: for everything, or for some topics and partitions."""

    everywhere: Start
    topics: Mapping[str, Start | Mapping[int, Start]] = field(
        default_factory=dict[str, Start | Mapping[int, Start]]
    )

    def of(self, topic: str, partition: int) -> Start:
        chosen = self.topics.get(topic, self.everywhere)
        if isinstance(chosen, Start):
            return chosen
        return chosen.get(partition, self.everywhere)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What is read, and how."""

    url: str
    topics: tuple[str, ...]
    pattern: str
    columns: tuple[str, ...]
    starting: ScanPositions | None
    ending: ScanPositions | None
    min_partitions: int
    records_max: int
    bytes_max: int
    fail_on_data_loss: bool
    group: str
    data: str
    push_filters: bool
    limits: SparkOptions
    key_file: str = ""
    tls: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Where rows go, and how."""

    url: str
    topic: str
    create_topics: bool
    partitions: int
    codec: Codec | None
    transaction_id: str
    transaction_timeout_seconds: float
    in_time_order: bool
    limits: SparkOptions
    key_file: str = ""
    tls: Mapping[str, str] = field(default_factory=dict[str, str])


def read_options(given: Mapping[str, str], *, streaming: bool | None = None) -> ReadOptions:
    """The options of a source. `streaming` is None as long as that is not known."""
    options = _Given(given, READ_NAMES, "source")
    topics = options.names("topics") or options.names("path")
    pattern = options.text("pattern")
    if bool(topics) == bool(pattern):
        raise InvalidArgumentError(
            "Give one of the options `topics` (names, separated by commas) and `pattern` (such "
            "as orders.*): they choose what to read."
        )
    for name in topics:
        if is_pattern(name):
            raise InvalidArgumentError(
                f"{name!r} is a pattern: give it with the option `pattern`, not with `topics`."
            )
    ending = options.positions("endingOffsets")
    if streaming and ending is not None:
        raise InvalidArgumentError(
            "The option `endingOffsets` is for batch reads: a stream has no end. Leave it out, or "
            "use the trigger availableNow."
        )
    options.only_for(streaming)
    if ending is not None and _holds(ending, EARLIEST):
        raise InvalidArgumentError(
            "The option `endingOffsets` can't be earliest: give latest, a time, or offsets."
        )
    limits = SparkOptions()
    fetch_bytes = options.number("fetchBytes", limits.fetch_bytes, least=4096)
    return ReadOptions(
        url=options.url(),
        topics=topics,
        pattern=pattern,
        columns=options.names("columns"),
        starting=options.positions("startingOffsets"),
        ending=ending,
        min_partitions=options.number("minPartitions", 0, least=1),
        records_max=options.number("maxRecordsPerTrigger", 0, least=1),
        bytes_max=options.number("maxBytesPerTrigger", 0, least=1),
        fail_on_data_loss=options.flag("failOnDataLoss", default=True),
        group=options.text("group"),
        data=options.text("data"),
        push_filters=options.flag("pushFilters", default=False),
        limits=msgspec.structs.replace(limits, fetch_bytes=fetch_bytes),
        key_file=options.text("keyFile"),
        tls=options.tls(),
    )


def write_options(given: Mapping[str, str], *, streaming: bool) -> WriteOptions:
    """The options of a sink."""
    options = _Given(given, WRITE_NAMES, "sink")
    topic = options.text("topic") or options.text("path")
    if topic and is_pattern(topic):
        raise InvalidArgumentError(
            f"{topic!r} is a pattern: name one topic to write to, or give rows a column `topic`."
        )
    id = options.text("transactionId")
    if id and streaming:
        raise InvalidArgumentError(
            "The option `transactionId` is for batch writes: a stream names its transactions "
            "after its query and its batches. Leave it out."
        )
    if len(id.encode()) > TRANSACTION_ID_BYTES_MAX:
        raise InvalidArgumentError(
            f"The option `transactionId` has {TRANSACTION_ID_BYTES_MAX} bytes at most."
        )
    limits = SparkOptions()
    timeout = options.number(
        "transactionTimeoutSeconds", int(limits.transaction_timeout_seconds), least=1
    )
    return WriteOptions(
        url=options.url(),
        topic=topic,
        create_topics=options.flag("createTopics", default=True),
        partitions=options.number("partitions", 0, least=1),
        codec=options.codec("compression"),
        transaction_id=id,
        transaction_timeout_seconds=float(timeout),
        in_time_order=options.flag("inTimeOrder", default=False),
        limits=limits,
        key_file=options.text("keyFile"),
        tls=options.tls(),
    )


class _Given:
    """The strings that Spark hands over, by names that are known."""

    def __init__(self, given: Mapping[str, str], known: tuple[str, ...], side: str) -> None:
        self._given = {name.lower(): value.strip() for name, value in given.items()}
        names = {name.lower(): name for name in known}
        for name in self._given:
            if name in names or name in _SPARKS_OWN or name.startswith(("spark.", "__")):
                continue
            if name == "tls":
                raise InvalidArgumentError(
                    "There is no option `tls`: give an address that begins with fanlogs://, and "
                    "the authority of its certificate with the option `tlsCaFile`."
                )
            if name in _SECRETS:
                raise InvalidArgumentError(
                    f"The option `{name}` would show a secret in Spark's plans and web page. Put "
                    "the key into a file on every machine, and give its path as the option "
                    "`keyFile`; or set FANLOG_KEY where driver and executors run."
                )
            raise InvalidArgumentError(
                f"The {side} `fanlog` has no option `{name}`: {_hint(name, names)}"
            )

    def text(self, name: str) -> str:
        return self._given.get(name.lower(), "")

    def only_for(self, streaming: bool | None) -> None:
        """Refuses options that this kind of query would ignore, as soon as the kind is known."""
        if streaming is None:
            return
        wrong, kind, other = (
            (_BATCH_ONLY, "batch reads", "a stream reads from the broker")
            if streaming
            else (
                _STREAM_ONLY,
                "streams",
                "a batch reads everything up to the end, and stores no offsets",
            )
        )
        for name in wrong:
            if self.text(name):
                raise InvalidArgumentError(
                    f"The option `{name}` is for {kind}: {other}. Leave it out."
                )

    def names(self, name: str) -> tuple[str, ...]:
        return tuple(part.strip() for part in self.text(name).split(",") if part.strip())

    def number(self, name: str, default: int, *, least: int) -> int:
        text = self.text(name)
        if not text:
            return default
        if not text.isdecimal() or int(text) < least:
            raise InvalidArgumentError(
                f"The option `{name}` is {text!r}, but must be a whole number of {least} or more."
            )
        return int(text)

    def flag(self, name: str, *, default: bool) -> bool:
        text = self.text(name).lower()
        if text not in ("", "true", "false"):
            raise InvalidArgumentError(f"The option `{name}` is {text!r}: give true or false.")
        return default if not text else text == "true"

    def url(self) -> str:
        url = self.text("url")
        if url:
            parse_urls(url)
            return url
        url = broker_url()
        try:
            parse_urls(url)
        except InvalidArgumentError as fault:
            raise InvalidArgumentError(f"The variable FANLOG_URL is wrong: {fault}") from None
        return url

    def tls(self) -> dict[str, str]:
        """What is given of TLS, as options of a client."""
        given = {option: self.text(name) for name, option in _TLS_NAMES.items()}
        return {option: text for option, text in given.items() if text}

    def codec(self, name: str) -> Codec | None:
        text = self.text(name).lower()
        if not text:
            return None
        try:
            return Codec[text.upper()]
        except KeyError:
            known = ", ".join(codec.name.lower() for codec in Codec)
            raise InvalidArgumentError(
                f"The option `{name}` is {text!r}, but must be one of {known}."
            ) from None

    def positions(self, name: str) -> ScanPositions | None:
        text = self.text(name)
        if not text:
            return None
        if not text.startswith("{"):
            return ScanPositions(_start(text, name))
        try:
            found = msgspec.json.decode(text, type=dict[str, str | int | dict[str, str | int]])
        except msgspec.DecodeError as fault:
            raise InvalidArgumentError(
                f"The option `{name}` is not JSON of topics and offsets ({fault}): write it as "
                f'{{"orders": {{"0": 23, "1": "latest"}}}}.'
            ) from None
        topics: dict[str, Start | Mapping[int, Start]] = {}
        for topic, chosen in found.items():
            if isinstance(chosen, dict):
                topics[topic] = _each(chosen, lambda value: _start(value, name), name)
            else:
                topics[topic] = _start(chosen, name)
        return ScanPositions(LATEST if name == "endingOffsets" else EARLIEST, topics)


def _hint(name: str, names: Mapping[str, str]) -> str:
    """The option that the user may have meant."""
    known = _KAFKA_NAMES.get(name)
    if known is not None and known.lower() in names:
        return f"Kafka's option of this name is `{known}` here."
    near = difflib.get_close_matches(name, names, n=1)
    return f"did you mean `{names[near[0]]}`?" if near else f"it has {', '.join(names.values())}."


def _each(
    given: Mapping[str, str | int], make: Callable[[str | int], T], name: str
) -> dict[int, T]:
    for partition in given:
        if not partition.isdecimal():
            raise InvalidArgumentError(
                f"In the option `{name}`, {partition!r} is not a partition number."
            )
    return {int(partition): make(value) for partition, value in given.items()}


def _start(given: str | int, name: str) -> Start:
    """A start from a word, an offset, or a time as ISO 8601 has it."""
    if isinstance(given, int):
        if given in _KAFKA_ENDS:
            return _KAFKA_ENDS[given]
        if given < 0:
            raise InvalidArgumentError(f"In the option `{name}`, {given} is not an offset.")
        return Start("offset", given)
    if given.lower() in ("earliest", "latest"):
        return EARLIEST if given.lower() == "earliest" else LATEST
    try:
        time = dt.datetime.fromisoformat(given)
    except ValueError:
        raise InvalidArgumentError(
            f"The option `{name}` is {given!r}: give earliest, latest, a time such as "
            f'2026-01-31T12:00:00Z, or JSON such as {{"orders": {{"0": 23}}}}.'
        ) from None
    if time.tzinfo is None:
        time = time.replace(tzinfo=dt.UTC)
    return Start("time", round(time.timestamp() * 1_000_000))


def _holds(positions: ScanPositions, wanted: Start) -> bool:
    chosen: list[Start] = [positions.everywhere]
    for some in positions.topics.values():
        chosen += [some] if isinstance(some, Start) else some.values()
    return wanted in chosen
