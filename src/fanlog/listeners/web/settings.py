"""Settings and the audit log over REST, for operators."""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec
from msgspec import Meta

from fanlog.client.arguments import as_start
from fanlog.errors import (
    ConfigError,
    ForbiddenError,
    InvalidArgumentError,
    NotSupportedError,
    TopicNotFoundError,
)
from fanlog.format.settings import OptionsShown, SettingsChanged, SettingsShown, SettingValue
from fanlog.identity import Verb
from fanlog.listeners.config_requests import settings_of
from fanlog.listeners.web.routes import Call, Nothing, Route
from fanlog.model import Start
from fanlog.security.audit import AUDIT_TOPIC, AuditRecord, Head, decode_record, digest

_READ_SECONDS = 10.0


class SettingsPatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options by their paths, such as `listener.drain_seconds`. null takes one back to its
    default."""

    values: Annotated[dict[str, SettingValue | None], Meta(min_length=1, max_length=200)]
    temporary: Annotated[
        bool, Meta(description="Only until the next start: do not write the change to the file.")
    ] = False


class AuditQuery(msgspec.Struct, frozen=True, kw_only=True):
    start: Annotated[
        str,
        Meta(
            max_length=64,
            description="Where to start: earliest, a record's number, a time or an age such as "
            "1h. Default: the last records.",
        ),
    ] = ""
    limit: Annotated[int, Meta(ge=1, le=1000, description="Most records.")] = 100


class AuditPage(msgspec.Struct, frozen=True, kw_only=True):
    """Records in their order. `head` is the hash of the last of them; with `next` there are more:
    give it as `start`."""

    records: list[AuditRecord]
    head: str
    next: int | None = None


async def show(call: Call[Nothing, None]) -> SettingsShown:
    return settings_of(call.bus.core).show()


async def describe_options(call: Call[Nothing, None]) -> OptionsShown:
    return settings_of(call.bus.core).describe()


async def change(call: Call[Nothing, SettingsPatch]) -> SettingsChanged:
    settings, body = settings_of(call.bus.core), call.body
    return await settings.change(call.permit.who, body.values, temporary=body.temporary)


async def reload(call: Call[Nothing, None]) -> SettingsChanged:
    return await settings_of(call.bus.core).reload(call.permit.who)


async def audit(call: Call[AuditQuery, None]) -> AuditPage:
    query, client = call.query, call.client
    limit = min(query.limit, call.listener.options.page_entries_max)
    start = as_start(query.start) if query.start else Start("last", limit)
    try:
        (partition,) = (await client.describe_topic(AUDIT_TOPIC)).partitions
        first = (await client.find_offsets(AUDIT_TOPIC, start))[0]
    except TopicNotFoundError:
        return AuditPage(records=[], head=str(Head()))
    first = max(first, partition.start_offset)
    end = min(first + limit, partition.visible_end)
    values: dict[int, bytes] = {}
    if first < end:
        async with (
            asyncio.timeout(_READ_SECONDS),
            client.subscribe(AUDIT_TOPIC, start=first) as records,
        ):
            while not values or max(values) < end - 1:
                for message in (await records.next_batch()).messages:
                    if message.offset < end:
                        values[message.offset] = message.value
    last = max(values, default=-1)
    return AuditPage(
        records=[decode_record(value) for value in values.values()],
        head=str(Head(last, digest(values[last])) if values else Head()),
        next=end if end < partition.visible_end else None,
    )


_CHANGE_ERRORS = (ConfigError, ForbiddenError, InvalidArgumentError, NotSupportedError)

ROUTES = [
    Route(
        "GET",
        "/v1/config",
        show,
        "Show the settings of this process",
        "operations",
        answer=SettingsShown,
        errors=(ForbiddenError, NotSupportedError),
        verb=Verb.ADMIN,
    ),
    Route(
        "GET",
        "/v1/config/options",
        describe_options,
        "Describe every setting: its purpose, its default, and its allowed values",
        "operations",
        answer=OptionsShown,
        errors=(ForbiddenError, NotSupportedError),
        verb=Verb.ADMIN,
    ),
    Route(
        "PATCH",
        "/v1/config",
        change,
        "Change settings: all of them, or none",
        "operations",
        body=SettingsPatch,
        example={"values": {"telemetry.log_level": "debug", "listener.drain_seconds": 30}},
        answer=SettingsChanged,
        description="Live settings take effect at once, the others after a restart. The process"
        " writes the changes to its configuration file.",
        errors=_CHANGE_ERRORS,
        verb=Verb.ADMIN,
    ),
    Route(
        "POST",
        "/v1/config/reload",
        reload,
        "Read the configuration file again, as SIGHUP does",
        "operations",
        answer=SettingsChanged,
        errors=_CHANGE_ERRORS,
        verb=Verb.ADMIN,
    ),
    Route(
        "GET",
        "/v1/audit",
        audit,
        "Read the audit log",
        "operations",
        query=AuditQuery,
        answer=AuditPage,
        errors=(ForbiddenError, InvalidArgumentError),
        verb=Verb.ADMIN,
    ),
]
