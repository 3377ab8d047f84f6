"""The audit log over REST: what a search finds, in pages, and what a check says of a chain."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fanlog.format.batch import encode_batch
from fanlog.identity import Role
from fanlog.listeners.web import audit_log
from fanlog.security.audit import AUDIT_TOPIC, AuditEntry, Head, link
from tests.listeners.web.conftest import Serving, Site
from tests.listeners.web.guarded import guarded


async def ask(site: Site, path: str) -> dict[str, Any]:
    async with site.http.get(f"/v1/audit/{path}") as answer:
        assert answer.status == 200, await answer.text()
        return await answer.json()


def entry(number: int, **fields: Any) -> AuditEntry:
    given: dict[str, Any] = {"action": "topic.create", "result": "ok", "name": f"t{number}"}
    return AuditEntry(time=f"2026-01-01T00:00:{number % 60:02}Z", **(given | fields))


async def write(site: Site, values: list[bytes]) -> None:
    """Puts records into the topic, as somebody who can write to the disk would."""
    loop = asyncio.get_running_loop()
    written: list[asyncio.Future[object]] = []
    core = site.listener.core
    audit: Any = core.audit
    partition = core.internal.make_kept(AUDIT_TOPIC, audit._settings)
    for at in range(0, len(values), 100):
        batch = encode_batch(values[at : at + 100])
        written.append(loop.create_future())
        core.internal.write_internal(partition, batch, written[-1].set_result)
    assert not any(await asyncio.gather(*written))


def chain(count: int) -> list[bytes]:
    return link(Head(), (entry(number) for number in range(count)))[0]


async def check(site: Site, query: str = "") -> tuple[list[dict[str, Any]], int]:
    """All parts of a check, and how many records they had."""
    parts: list[dict[str, Any]] = []
    after = ""
    while not parts or after:
        parts.append(await ask(site, f"verify?limit=100&after={after}{query}"))
        after = parts[-1]["next"]
    return parts, sum(part["records"] for part in parts)


async def test_changes_are_found_newest_first(serving: Serving) -> None:
    async with serving() as site:
        assert await ask(site, "search") == {
            "records": [],
            "next": None,
            "searched": 0,
            "total": 0,
            "unreadable": 0,
        }
        for name in ("one", "two"):
            async with site.http.post("/v1/topics", json={"name": name}) as answer:
                assert answer.status == 201
        while (await ask(site, "search"))["total"] < 2:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.01)
        found = await ask(site, "search")
        assert [record["name"] for record in found["records"]] == ["two", "one"]
        assert found["next"] is None


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", [5, 4, 3, 2, 1, 0]),
        ("text=SHOP", [5, 3]),
        ("who=ann", [2, 1]),
        ("who=fl_abc", [2]),
        ("action=key.*", [4]),
        ("action=topic.create&result=denied", [3]),
        ("name=t*&result=failed", [5]),
        ("before=2", [1, 0]),
        ("limit=2&before=4", [3, 2]),
        ("since=1h", [5, 4, 3, 2, 1, 0]),
        ("until=2020-01-01T00:00:00Z", []),
        ("text=nothing", []),
    ],
)
async def test_a_search_finds_what_fits(serving: Serving, query: str, expected: list[int]) -> None:
    entries = [
        entry(0),
        entry(1, user="Ann"),
        entry(2, user="bob", account="ann-key", key="fl_abc"),
        entry(3, result="denied", detail="of the Shop"),
        entry(4, action="key.create"),
        entry(5, result="failed", user="shop"),
    ]
    async with serving() as site:
        await write(site, link(Head(), entries)[0])
        found = await ask(site, f"search?{query}")
        assert [record["seq"] for record in found["records"]] == expected
        assert found["total"] == 6


async def test_a_search_has_pages_and_looks_at_a_bounded_number(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_log, "_SEARCHED_MAX", 300)
    async with serving() as site:
        await write(site, chain(1000))
        found = await ask(site, "search?name=t7&limit=5")
        assert (found["records"], found["next"], found["searched"]) == ([], 500, 500)
        before, seen = found["next"], 0
        while before is not None:
            found = await ask(site, f"search?name=t7&limit=5&before={before}")
            before, seen = found["next"], seen + len(found["records"])
        assert seen == 1
        pages: list[int] = []
        before = 1000
        while before is not None:
            found = await ask(site, f"search?limit=90&before={before}")
            pages += [record["seq"] for record in found["records"]]
            before = found["next"]
        assert pages == list(range(999, -1, -1))


async def test_a_whole_chain_is_verified_in_parts(serving: Serving, tmp_path: Path) -> None:
    async with serving(path=tmp_path) as site:
        values = chain(450)
        await write(site, values)
        parts, records = await check(site)
        assert all(part["ok"] for part in parts)
        assert len(parts) == 5
        assert records == 450
        assert (parts[-1]["newest"], parts[-1]["last"], parts[-1]["oldest"]) == (449, 449, 0)
        head = parts[-1]["head"]
        assert head == str(link(Head(), (entry(number) for number in range(450)))[1])
        parts, _ = await check(site, f"&head={head}")
        assert all(part["ok"] for part in parts)


@pytest.mark.parametrize("bad", [0, 1, 98, 99, 100, 101, 198, 199, 200, 248, 249])
async def test_a_changed_record_is_found_wherever_it_is(serving: Serving, bad: int) -> None:
    values = chain(250)
    values[bad] = values[bad].replace(b"topic.create", b"topic.delete")
    async with serving() as site:
        await write(site, values)
        head = link(Head(), (entry(number) for number in range(250)))[1]
        # Of the last record only a head that was kept elsewhere tells.
        parts, _ = await check(site, f"&head={head}")
        faults = [fault for part in parts for fault in part["faults"]]
        assert faults
        assert bad - 1 <= faults[0]["seq"] <= bad
        assert not all(part["ok"] for part in parts)


async def test_a_log_that_was_cut_off_or_holds_rubbish_is_found(serving: Serving) -> None:
    async with serving() as site:
        head = link(Head(), (entry(number) for number in range(250)))[1]
        await write(site, chain(240))
        parts, _ = await check(site, f"&head={head}")
        assert [part["ok"] for part in parts] == [True, True, False]
        assert "missing at the end" in parts[-1]["faults"][0]["sentence"]
    async with serving() as site:
        values = chain(150)
        values[99] = b"rubbish"
        await write(site, values)
        parts, _ = await check(site)
        assert parts[0]["faults"][0]["seq"] == 99
        assert (await ask(site, "search"))["unreadable"] == 0
        assert (await ask(site, "search?before=100&limit=1&text=x"))["unreadable"] == 1


@pytest.mark.parametrize(
    "path",
    [
        "search?result=x",
        "search?limit=501",
        "search?before=-1",
        "search?since=yesterday-ish",
        "verify?limit=10",
        "verify?after=x",
        "verify?head=x",
        "verify?after=1:abc",
    ],
)
async def test_wrong_parameters_are_refused(serving: Serving, path: str) -> None:
    async with serving() as site:
        await write(site, chain(1))
        async with site.http.get(f"/v1/audit/{path}") as answer:
            assert answer.status == 400, await answer.text()


async def test_only_admins_read_the_audit_log() -> None:
    async with guarded() as site:
        viewer, admin = site.key("viewer", Role.VIEWER), site.key("root", Role.ADMIN)
        for path in ("/v1/audit/search", "/v1/audit/verify"):
            assert (await site.ask("GET", path, key=viewer))[0] == 403
            assert (await site.ask("GET", path))[0] == 401
            assert (await site.ask("GET", path, key=admin))[0] == 200
