"""Groups and queues as a table, and one of them in full."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fanlog.broker.insight.group_scan import GroupScan
from fanlog.broker.slices import Slices
from fanlog.format.messages import Position
from fanlog.identity import Role
from fanlog.listeners.web.server import WebListener
from fanlog.model import GROUP_PREFIX
from tests.client.ways import PATIENCE_SECONDS
from tests.listeners.web.conftest import Serving, Site
from tests.listeners.web.guarded import Guarded, bearer, guarded
from tests.listeners.web.test_work import ask, get


def commit(listener: WebListener, group: str, topic: str, offset: int, partition: int = 0) -> None:
    core = listener.core
    position = Position(topic, partition, offset, core.epoch)
    name = GROUP_PREFIX + group
    core.durable.commit_positions([(name, core.check_positions(name, (position,)))])


async def fill(site: Site | Guarded) -> None:
    """`late` is 10 behind, `slow` 4, `done` 0; the queue `mail` has 3 jobs that nobody has."""
    await site.broker.publish_many("orders", [b"x"] * 10)
    await site.broker.publish_many("emails", [b"x"] * 3)
    for name, offset in (("late", 0), ("slow", 6), ("done", 10)):
        commit(site.listener, name, "orders", offset)
    async with site.broker.work("emails", queue="mail", reset="earliest", prefetch=1):
        pass


async def listed(site: Site, query: str = "") -> dict[str, Any]:
    return await get(site, f"/v1/group-list{query}")


def names(page: dict[str, Any]) -> list[str]:
    return [group["name"] for group in page["groups"]]


async def test_who_lags_most_comes_first(serving: Serving) -> None:
    async with serving() as site:
        await fill(site)
        page = await listed(site, "?sort=lag&descending=true")
        assert names(page) == ["late", "slow", "mail", "done"]
        assert (page["total"], page["lagging"], page["lag"]) == (4, 3, 17)
        late, _, mail, done = page["groups"]
        assert (late["kind"], late["state"], late["topics"]) == ("stream", "inactive", 1)
        assert late["lag_seconds"] >= 0
        assert late["lag_seconds_known"]
        assert (mail["kind"], mail["waiting"], mail["in_flight"]) == ("queue", 3, 0)
        assert (done["lag"], done["lag_seconds"]) == (0, 0)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", ["done", "late", "mail", "slow"]),
        ("?sort=name&descending=true", ["slow", "mail", "late", "done"]),
        ("?kind=queue", ["mail"]),
        ("?kind=stream", ["done", "late", "slow"]),
        ("?search=L", ["late", "mail", "slow"]),
        ("?search=nothing", []),
        ("?lagging=true&sort=lag", ["mail", "slow", "late"]),
        ("?state=active", []),
        ("?limit=2&offset=1", ["late", "mail"]),
        ("?limit=2&offset=100", []),
        # Those that are equal come by name, in both directions.
        ("?sort=members", ["done", "late", "mail", "slow"]),
        ("?sort=members&descending=true", ["done", "late", "mail", "slow"]),
        ("?sort=waiting&descending=true&kind=queue", ["mail"]),
    ],
)
async def test_groups_are_searched_sorted_and_paged(
    serving: Serving, query: str, expected: list[str]
) -> None:
    async with serving() as site:
        await fill(site)
        assert names(await listed(site, query)) == expected


SORTS = (
    *("name", "kind", "state", "members", "topics", "partitions", "lag", "lag_seconds"),
    *("rebalances", "waiting", "in_flight", "retrying", "redelivered", "dead_lettered"),
)


async def test_every_column_sorts_all_of_them(serving: Serving) -> None:
    async with serving() as site:
        await fill(site)
        for sort in SORTS:
            for descending in ("true", "false"):
                page = await listed(site, f"?sort={sort}&descending={descending}")
                assert sorted(names(page)) == ["done", "late", "mail", "slow"], sort


@pytest.mark.parametrize(
    "query",
    [
        "?sort=x",
        "?offset=-1",
        "?limit=0",
        "?kind=x",
        "?state=gone",
        "?page=2",
        "?search=" + "x" * 256,
    ],
)
async def test_a_wrong_query_is_refused(serving: Serving, query: str) -> None:
    async with serving() as site:
        status, answer = await ask(site, "GET", f"/v1/group-list{query}")
        assert status == 400, answer


async def test_a_page_is_no_longer_than_the_settings_say(serving: Serving) -> None:
    async with serving(page_entries_max=2) as site:
        await fill(site)
        page = await listed(site, "?limit=1000")
        assert len(page["groups"]) == 2
        assert page["total"] == 4


async def test_a_list_leaves_out_what_may_not_be_seen() -> None:
    async with guarded() as site:
        await fill(site)
        key = site.key("ann", Role.CONSUMER, groups=("slow", "done"), queues=())
        for _ in range(2):
            async with site.http.get("/v1/group-list", headers=bearer(key)) as answer:
                page = await answer.json()
            assert names(page) == ["done", "slow"]
            # Nor do the sums tell of the others.
            assert (page["total"], page["lagging"], page["lag"]) == (2, 1, 4)
        site.key("ann", Role.CONSUMER, groups=("late",), queues=("mail",))
        async with site.http.get("/v1/group-list", headers=bearer(key)) as answer:
            assert names(await answer.json()) == ["late", "mail"]
        for path in ("/v1/groups/slow/overview", "/v1/groups/slow/partitions"):
            async with site.http.get(path, headers=bearer(key)) as answer:
                assert answer.status == 403
        # A member's address is for operators only.
        async with site.broker.consume("orders", group="late"):
            url = "/v1/groups/late/overview"
            async with site.http.get(url, headers=bearer(key)) as answer:
                (member,) = (await answer.json())["members"]
            assert (member["address"], member["connection"]) == ("", "")


async def test_all_share_one_look(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    rows = GroupScan.rows

    async def counted(self: GroupScan) -> Any:
        nonlocal looks
        looks += 1
        return await rows(self)

    monkeypatch.setattr(GroupScan, "rows", counted)
    async with serving() as site:
        await fill(site)
        for query in ("", "?sort=lag", "?search=a", ""):
            await listed(site, query)
        assert looks == 1


async def test_a_group_that_is_deleted_is_gone_at_once(serving: Serving) -> None:
    async with serving() as site:
        await fill(site)
        assert "late" in names(await listed(site))
        assert (await ask(site, "DELETE", "/v1/groups/late"))[0] == 204
        assert "late" not in names(await listed(site))
        assert (await ask(site, "GET", "/v1/groups/late/overview"))[0] == 404
        # By somebody else, whom the list does not know.
        await site.broker.groups.delete("slow")
        assert "slow" not in names(await listed(site))


async def test_very_many_groups_are_paged_through(serving: Serving) -> None:
    async with serving() as site:
        await site.broker.publish_many("orders", [b"x"] * 10)
        for i in range(2500):
            commit(site.listener, f"g{i:05}", "orders", i % 10)
        found: list[str] = []
        for offset in range(0, 2500, 500):
            page = await listed(site, f"?sort=lag&descending=true&limit=500&offset={offset}")
            assert page["total"] == 2500
            found += names(page)
        expected = sorted(range(2500), key=lambda i: (i % 10, i))
        assert found == [f"g{i:05}" for i in expected]


@pytest.mark.parametrize("path", ["/v1/group-list", "/v1/groups/wide/overview"])
async def test_a_large_group_is_looked_at_in_many_turns(
    serving: Serving, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    # Then every step is a turn of its own.
    monkeypatch.setattr("fanlog.broker.slices.SLICE_US", 0)
    turns, turn = 0, Slices._turn

    async def counted(self: Slices) -> None:
        nonlocal turns
        turns += 1
        await turn(self)

    async with serving() as site:
        await site.broker.create_topic("wide", partitions=1000)
        for partition in range(1000):
            commit(site.listener, "wide", "wide", 0, partition)
        monkeypatch.setattr(Slices, "_turn", counted)
        assert await get(site, path)
        assert turns > 60


async def test_ages_are_read_from_disk_after_a_restart(serving: Serving, tmp_path: Path) -> None:
    async with serving(path=tmp_path) as site:
        await fill(site)
    async with serving(path=tmp_path) as site:
        page = await listed(site, "?sort=lag_seconds&descending=true&lagging=true")
        assert sorted(names(page)) == ["late", "mail", "slow"]
        assert all(group["lag_seconds"] > 0 for group in page["groups"])
        assert all(group["lag_seconds_known"] for group in page["groups"])
        parts = await get(site, "/v1/groups/late/partitions")
        assert parts["partitions"][0]["lag_seconds"] > 0


# One group


async def test_a_group_shows_its_members_and_what_each_is_behind(serving: Serving) -> None:
    async with serving() as site:
        await site.broker.create_topic("orders", partitions=4)
        await site.broker.publish_many("orders", [b"x"] * 40)
        async with site.broker.consume(
            "orders", group="g", reset="earliest", commit="manual"
        ) as member:
            await member.next(PATIENCE_SECONDS)
            group = await get(site, "/v1/groups/g/overview")
            assert (group["kind"], group["state"]) == ("stream", "active")
            assert (group["lag"], group["partition_count"], group["topic_count"]) == (40, 4, 1)
            (found,) = group["members"]
            assert (found["partitions"], found["lag"], found["present"]) == (4, 40, True)
            assert group["topics"] == [{"name": "orders", "partitions": 4, "lag": 40}]
            parts = await get(site, f"/v1/groups/g/partitions?member={found['id']}")
            assert [part["partition"] for part in parts["partitions"]] == [0, 1, 2, 3]
            assert {part["member"] for part in parts["partitions"]} == {found["id"]}
            assert (await get(site, "/v1/groups/g/partitions?member=x"))["total"] == 0


async def test_partitions_are_searched_sorted_and_paged(serving: Serving) -> None:
    async with serving() as site:
        for name, count in (("a.one", 1), ("a.two", 2), ("b.three", 3)):
            await site.broker.publish_many(name, [b"x"] * count)
            commit(site.listener, "g", name, 0)
        commit(site.listener, "g", "a.two", 2)
        url = "/v1/groups/g/partitions"

        async def topics(query: str) -> list[str]:
            page = await get(site, url + query)
            return [part["topic"] for part in page["partitions"]]

        assert await topics("") == ["a.one", "a.two", "b.three"]
        assert await topics("?sort=lag&descending=true") == ["b.three", "a.one", "a.two"]
        assert await topics("?lagging=true") == ["a.one", "b.three"]
        assert await topics("?search=A.") == ["a.one", "a.two"]
        assert await topics("?topic=a.two") == ["a.two"]
        assert await topics("?sort=topic&descending=true&limit=1&offset=1") == ["a.two"]
        for sort in ("committed", "end_offset", "member", "in_flight", "waiting", "retrying"):
            assert len(await topics(f"?sort={sort}")) == 3
        page = await get(site, url + "?lagging=true&limit=1")
        assert (page["total"], page["lag"]) == (2, 4)
        (part,) = (await get(site, url + "?topic=a.two"))["partitions"]
        assert (part["committed"], part["end_offset"], part["lag"]) == (2, 2, 0)


async def test_a_group_with_very_many_partitions_has_a_short_overview(serving: Serving) -> None:
    async with serving() as site:
        for i in range(300):
            await site.broker.create_topic(f"t{i:03}")
            commit(site.listener, "g", f"t{i:03}", 0)
        await site.broker.publish("t250", b"x")
        group = await get(site, "/v1/groups/g/overview")
        assert (group["topic_count"], group["partition_count"]) == (300, 300)
        assert len(group["topics"]) == 100
        assert group["topics"][0] == {"name": "t250", "partitions": 1, "lag": 1}


async def test_a_group_that_was_reset_shows_it_at_once(serving: Serving) -> None:
    async with serving() as site:
        await fill(site)
        assert (await get(site, "/v1/groups/late/overview"))["lag"] == 10
        body = {"start": "latest", "dry_run": True}
        assert (await ask(site, "POST", "/v1/groups/late/reset", body))[0] == 200
        assert (await get(site, "/v1/groups/late/overview"))["lag"] == 10
        body["dry_run"] = False
        assert (await ask(site, "POST", "/v1/groups/late/reset", body))[0] == 200
        assert (await get(site, "/v1/groups/late/overview"))["lag"] == 0


async def test_a_group_that_is_not_there_is_not_found(serving: Serving) -> None:
    async with serving() as site:
        for path in ("overview", "partitions"):
            status, answer = await ask(site, "GET", f"/v1/groups/none/{path}")
            assert (status, answer["code"]) == (404, "group_not_found")


async def test_a_name_that_is_not_there_does_not_make_the_table_new(serving: Serving) -> None:
    async with serving() as site:
        tables = site.listener.group_tables
        table = await tables.table()
        for path in ("/v1/groups/nothing/overview", "/v1/groups/nothing/partitions"):
            async with site.http.get(path) as answer:
                assert answer.status == 404
        assert await tables.table() is table
        assert not tables._names  # pyright: ignore[reportPrivateUsage]
