"""Messages for people: bounded looks at topics, with conditions, tokens and a live tail."""

from __future__ import annotations

import asyncio
import json
import random
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest

from fanlog.format.batch import encode_batch
from fanlog.format.codecs import Codec
from fanlog.format.columns import SIZES
from fanlog.identity import Role
from fanlog.listeners.web import explorer, explorer_details, explorer_look
from fanlog.listeners.web.explorer_scan import ExplorerScan
from tests.format.crafted import column, crafted, squeezed
from tests.listeners.web.conftest import Serving, Site
from tests.listeners.web.guarded import guarded

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


async def explore(site: Site, status: int = 200, **params: Any) -> Any:
    return await ask(site, "/v1/explore", status, {"topic": "orders"} | params)


async def ask(site: Site, path: str, status: int, params: dict[str, Any]) -> Any:
    given = [
        (name, str(one))
        for name, value in params.items()
        for one in (value if isinstance(value, list) else [value])
    ]
    async with site.http.get(path, params=given) as answer:
        assert answer.status == status, await answer.text()
        return await answer.json(content_type=None)


def texts(page: Any) -> list[str]:
    return [message.get("preview", "") for message in page["messages"]]


async def fill(site: Site, count: int, topic: str = "orders", **settings: Any) -> None:
    await site.broker.create_topic(topic, **settings)
    for number in range(count):
        await site.broker.publish(topic, str(number), key=f"k{number}")


def write(site: Site, values: list[bytes | None], topic: str = "orders", **more: Any) -> None:
    number = site.listener.core.catalog.get(topic).number
    site.broker.write(encode_batch(values, topic=number, **more))


async def test_the_newest_come_first_and_next_continues_to_the_oldest(serving: Serving) -> None:
    async with serving() as site:
        await fill(site, 100, partitions=4)
        page = await explore(site, limit=7)
        assert texts(page) == [str(number) for number in range(99, 92, -1)]
        assert (page["ended"], page["left"], page["scanned_messages"]) == ("limit", 93, 7)
        found = texts(page)
        while page["next"]:
            page = await explore(site, limit=7, position=page["next"])
            found += texts(page)
        assert found == [str(number) for number in range(99, -1, -1)]
        assert (page["ended"], page["left"]) == ("end", 0)


async def test_forwards_the_oldest_come_first(serving: Serving) -> None:
    async with serving() as site:
        await fill(site, 100, partitions=4)
        page = await explore(site, limit=7, direction="forward")
        found = texts(page)
        while page["next"]:
            page = await explore(site, limit=7, direction="forward", position=page["next"])
            found += texts(page)
        assert found == [str(number) for number in range(100)]


async def test_it_begins_at_an_offset_or_a_time(serving: Serving) -> None:
    async with serving() as site:
        await fill(site, 10)
        assert texts(await explore(site, start=4, limit=3)) == ["4", "3", "2"]
        assert texts(await explore(site, start=4, limit=3, direction="forward")) == ["4", "5", "6"]
        assert texts(await explore(site, start=400, limit=1)) == ["9"]
        assert texts(await explore(site, start=400, limit=1, direction="forward")) == []
        assert len(texts(await explore(site, start="1h", direction="forward"))) == 10
        assert texts(await explore(site, start="1h")) == []
        assert len(texts(await explore(site, start="2099-01-01T00:00:00Z"))) == 10
        await explore(site, 400, start="yesterday-ish")


async def test_one_partition_may_be_chosen(serving: Serving) -> None:
    async with serving() as site:
        await fill(site, 20, partitions=3)
        page = await explore(site, partition=[0, 2])
        assert {message["partition"] for message in page["messages"]} == {0, 2}
        assert (await explore(site, 404, partition=3))["code"] == "partition_not_found"


async def test_a_live_tail_gets_what_came_since_and_counts_what_it_skips(serving: Serving) -> None:
    async with serving() as site:
        await fill(site, 5)
        page = await explore(site, limit=2)
        assert texts(page) == ["4", "3"]
        again = await explore(site, after=page["after"])
        assert (texts(again), again["skipped"]) == ([], 0)
        for number in range(5, 15):
            await site.broker.publish("orders", str(number))
        page = await explore(site, limit=4, after=page["after"])
        assert texts(page) == ["14", "13", "12", "11"]
        assert page["skipped"] == 6
        assert texts(await explore(site, after=page["after"])) == []


async def test_a_backlog_of_two_million_is_counted_and_not_decoded(
    serving: Serving, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    opened: list[int] = []
    batch = explorer_look.Batch

    def counted(*given: Any) -> Any:
        made = batch(*given)
        opened.append(made.base_offset)
        return made

    monkeypatch.setattr(explorer_look, "Batch", counted)
    async with serving(path=tmp_path / "data") as site:
        await fill(site, 1)
        page = await explore(site)
        values: list[bytes | None] = [b"%d" % number for number in range(10_000)]
        for _ in range(200):
            write(site, values, keys=values, codec=Codec.LZ4)
            await asyncio.sleep(0)
        opened.clear()
        page = await explore(site, limit=100, after=page["after"])
        assert texts(page) == [str(number) for number in range(9999, 9899, -1)]
        assert page["skipped"] == 2_000_000 - 100
        assert len(opened) == 1
        # With a condition the budget says how much is decoded.
        page = await explore(site, text="never", scan_bytes=500_000)
        assert (page["ended"], page["messages"]) == ("budget", [])
        assert page["scanned_messages"] + page["left"] == 2_000_001
        assert 0 < page["scanned_messages"] < 200_000


async def test_a_batch_of_a_million_is_read_in_part(serving: Serving) -> None:
    async with serving() as site:
        await fill(site, 0)
        write(site, [b"x"] * 1_000_000)
        page = await explore(site, limit=2)
        assert [message["offset"] for message in page["messages"]] == [999_999, 999_998]
        assert page["scanned_messages"] == 2
        page = await explore(site, limit=2, position=page["next"])
        assert [message["offset"] for message in page["messages"]] == [999_997, 999_996]


CONDITIONS: list[tuple[dict[str, Any], set[int]]] = [
    ({"key": "B-"}, {1, 2}),
    ({"key": "B-", "case": "true"}, set()),
    ({"key": "b-1", "key_match": "exact"}, {1}),
    ({"key": "b", "key_match": "prefix"}, {1, 2}),
    ({"key": "?-[1]*", "key_match": "glob"}, {1}),
    ({"key": "/w==", "key_match": "base64"}, {3}),
    ({"header": "type"}, {1, 2}),
    ({"header": "TYPE=paid"}, {1}),
    ({"header": "type~EN"}, {2}),
    ({"header": ["type=paid", "region"]}, {1}),
    ({"header": "region=paid"}, set()),
    ({"text": "TEA"}, {1, 2}),
    ({"text": "TEA", "case": "true"}, set()),
    ({"text": "straße"}, {4}),
    ({"text": "STRASSE"}, set()),
    ({"text": "STRAßE"}, {4}),
    ({"json": "order.total > 10"}, {2}),
    ({"json": "order.total >= 10"}, {1, 2}),
    ({"json": "order.total < 10.5"}, {1}),
    ({"json": "order.total <= 9"}, set()),
    ({"json": "$.order.what = tea"}, {1, 2}),
    ({"json": 'order.what == "tea"'}, {1, 2}),
    ({"json": "order.what != tea"}, set()),
    ({"json": "order.what ~ TE"}, {1, 2}),
    ({"json": "order.gift"}, {2}),
    ({"json": "order.gift = true"}, {2}),
    ({"json": "order.gift = 1"}, set()),
    ({"json": "items[1].id = 7"}, {2}),
    ({"json": "items[0].id = 7"}, {1}),
    ({"json": "tags ~ 5"}, {2}),
    ({"json": '"a name".b = null'}, {2}),
    ({"json": ["order.total > 1", "tags"]}, {2}),
    ({"json": "id = 9007199254740993"}, {1}),
    ({"json": "id = 9007199254740992"}, set()),
    ({"json": "at > 2026-01-01"}, {1}),
    ({"trace": TRACE}, {2}),
    ({"trace": TRACE.upper()}, {2}),
    ({"trace": "f" * 32}, set()),
    ({"text": "tea", "key": "2"}, {2}),
]


async def publish_examples(site: Site) -> None:
    client = site.broker
    await client.create_topic("orders")
    await client.publish("orders", "plain")
    one = {
        "order": {"total": 10, "what": "tea"},
        "items": [{"id": 7}],
        "id": 9007199254740993,
        "at": "2026-03-01T00:00:00Z",
    }
    headers = {"Type": b"paid", "region": b"eu"}
    await client.publish("orders", json.dumps(one), key="b-1", headers=headers)
    two = {
        "order": {"total": 11.5, "what": "tea", "gift": True},
        "items": [{}, {"id": 7}],
        "tags": [4, 5],
        "a name": {"b": None},
    }
    headers = {"type": b"sent", "traceparent": f"00-{TRACE}-00f067aa0ba902b7-01".encode()}
    await client.publish("orders", json.dumps(two), key="b-2", headers=headers)
    await client.publish("orders", b"\xff\xfe\x00", key=b"\xff")
    await client.publish("orders", "eine Straße")
    await client.publish("orders", None, key="gone")


@pytest.mark.parametrize(("given", "fitting"), CONDITIONS)
async def test_conditions_are_checked_by_the_broker(
    serving: Serving, given: dict[str, Any], fitting: set[int]
) -> None:
    async with serving() as site:
        await publish_examples(site)
        page = await explore(site, **given)
        assert {message["offset"] for message in page["messages"]} == fitting
        assert page["scanned_messages"] == 6


@pytest.mark.parametrize(
    "given",
    [
        {"json": "> 10"},
        {"json": "a b c"},
        {"json": "a ="},
        {"json": "a[b] = 1"},
        {"json": ".".join("a" * 40)},
        {"header": "=x"},
        {"key": "no base64!", "key_match": "base64"},
        {"key": ""},
        {"trace": "abc"},
        {"limit": 501},
        {"limit": 0},
        {"scan_bytes": 1 << 40},
        {"preview_bytes": 1 << 20},
        {"position": "a"},
        {"position": "1:2"},
        {"position": "1:0.5;"},
        {"after": "1:0.99999999999999999999"},
        {"after": "1" * 30_000},
        {"topic": "a*b"},
        {"topic": ["t"] * 17},
        {"text": "x" * 2000},
        {"header": ["a"] * 9},
        {"unknown": "1"},
    ],
)
async def test_what_is_wrong_is_refused(serving: Serving, given: dict[str, Any]) -> None:
    async with serving() as site:
        await fill(site, 3)
        status = 414 if len(str(given)) > 32_000 else 400
        problem = await explore(site, status, **given)
        assert problem["code"] in ("invalid_argument", "invalid_name"), problem


async def test_deep_json_and_long_numbers_are_no_match_and_no_failure(serving: Serving) -> None:
    async with serving() as site:
        await fill(site, 0)
        await site.broker.publish("orders", "[" * 50_000 + "]" * 50_000)
        await site.broker.publish("orders", '{"a":' + "9" * 10_000 + "}")
        await site.broker.publish("orders", '{"a":"\\ud800"}')
        page = await explore(site, json="a > 1")
        assert page["scanned_messages"] == 3
        assert len(page["messages"]) <= 1


async def test_rows_say_what_a_value_is_and_cut_it(serving: Serving) -> None:
    async with serving() as site:
        await publish_examples(site)
        rows = {row["offset"]: row for row in (await explore(site, preview_bytes=8))["messages"]}
        assert [rows[i].get("format", "text") for i in range(6)] == [
            *("text", "json", "json", "binary", "text", "deleted")
        ]
        assert (rows[1]["preview"], rows[1]["truncated"]) == ('{"order"', True)
        assert rows[1]["headers"]["Type"] == "paid"
        assert rows[2]["trace"] == TRACE
        assert rows[3]["key_base64"] == "/w=="
        assert b64decode(rows[3]["preview_base64"]) == b"\xff\xfe\x00"
        # "eine Stra" and one byte of two: the cut is between characters.
        assert (await explore(site, start=4, limit=1, preview_bytes=10))["messages"][0][
            "preview"
        ] == "eine Stra"
        assert "truncated" not in rows[0]
        assert rows[5]["key"] == "gone"


async def test_an_answer_is_bounded_however_large_keys_and_headers_are(
    serving: Serving, tmp_path: Path
) -> None:
    async with serving(path=tmp_path / "data") as site:
        await fill(site, 0)
        headers = {f"h{i}": b"x" * 5000 for i in range(40)}
        for _ in range(200):
            await site.broker.publish("orders", b"v" * 20_000, key=b"k" * 9000, headers=headers)
        async with site.http.get(
            "/v1/explore?topic=orders&limit=500&preview_bytes=16384",
            headers={"Accept-Encoding": "identity"},
        ) as answer:
            body = await answer.read()
        page = json.loads(body)
        assert len(body) < 4 << 20
        assert page["ended"] == "limit"
        row = page["messages"][0]
        assert (len(row["key"]), row["key_bytes"], row["headers_cut"]) == (1024, 9000, True)
        found = len(page["messages"])
        while page["next"]:
            page = await explore(site, limit=500, preview_bytes=16384, position=page["next"])
            found += len(page["messages"])
        assert found == 200


async def test_the_whole_message_comes_with_a_second_request(serving: Serving) -> None:
    async with serving() as site:
        await fill(site, 0)
        value = bytes(range(256)) * 100
        await site.broker.publish("orders", "first")
        await site.broker.publish("orders", value, key=b"\xff", headers={"a": b"\xfe", "b": b"c"})
        where = {"topic": "orders", "partition": 0, "offset": 1}
        got = await ask(site, "/v1/explore/message", 200, where)
        assert b64decode(got["value_base64"]) == value
        assert (got["bytes"], got["truncated"], got["format"]) == (25_600, False, "binary")
        assert got["headers"] == [["a", "/g=="], ["b", "Yw=="]]
        assert b64decode(got["key_base64"]) == b"\xff"
        assert (got["codec"], got["batch_messages"]) == ("none", 1)
        got = await ask(site, "/v1/explore/message", 200, where | {"value_bytes": 10})
        assert (b64decode(got["value_base64"]), got["truncated"]) == (value[:10], True)
        gone = await ask(site, "/v1/explore/message", 416, where | {"offset": 2})
        assert gone["code"] == "offset_out_of_range"
        await ask(site, "/v1/explore/message", 404, where | {"partition": 1})
        await ask(site, "/v1/explore/message", 404, where | {"topic": "nothing"})


async def test_a_long_value_is_looked_through_and_shown_in_parts(serving: Serving) -> None:
    async with serving() as site:
        await site.broker.create_topic("orders", message_bytes_max=8 << 20)
        mib = 1 << 20
        # Across the border of two parts, and of several bytes for a letter.
        value = ("x" * (mib - 3) + "Straße" + "y" * mib + "ENDE").encode()
        await site.broker.publish("orders", value)
        for text, case in (("STRAßE", "false"), ("Straße", "true"), ("ende", "false")):
            page = await explore(site, text=text, case=case, preview_bytes=0)
            assert len(page["messages"]) == 1
        assert (await explore(site, text="ende", case="true"))["messages"] == []
        where = {"topic": "orders", "partition": 0, "offset": 0, "value_bytes": 16 * mib}
        got = await ask(site, "/v1/explore/message", 200, where)
        assert b64decode(got["value_base64"]) == value
        assert not got["truncated"]


async def test_compressed_batches_are_read(serving: Serving, tmp_path: Path) -> None:
    async with serving(path=tmp_path / "data") as site:
        await fill(site, 0, partitions=1)
        for codec in Codec:
            values: list[bytes | None] = [b"%s %d" % (codec.label.encode(), i) for i in range(50)]
            write(site, values, codec=codec)
        page = await explore(site, limit=200)
        assert len(page["messages"]) == 200
        assert texts(await explore(site, text="zstd 49")) == ["zstd 49"]
        where = {"topic": "orders", "partition": 0, "offset": 149}
        assert (await ask(site, "/v1/explore/message", 200, where))["codec"] == "zstd"


async def test_bombs_and_lies_are_gaps_in_their_place(serving: Serving) -> None:
    async with serving() as site:
        await fill(site, 3)
        number = site.listener.core.catalog.get("orders").number
        site.broker.write(crafted(column([0, 9, 2], b"xy"), count=2, topic=number))
        lie = crafted(SIZES.pack(500_000, 1000) + bytes(1000), codec=Codec.ZSTD, topic=number)
        site.broker.write(lie)
        await site.broker.publish("orders", "last")
        gaps = [{"from": 5, "to": 6}, {"from": 3, "to": 5}]
        for direction in ("backward", "forward"):
            page = await explore(site, direction=direction)
            assert sorted(texts(page)) == ["0", "1", "2", "last"]
            assert [gap["reason"] for gap in page["gaps"]] == ["unreadable"] * 2
            assert [{"from": g["from"], "to": g["to"]} for g in page["gaps"]] == gaps
            gaps.reverse()
        where = {"topic": "orders", "partition": 0, "offset": 5}
        async with site.http.get("/v1/explore/message", params=where) as answer:
            assert answer.status >= 400
            assert (await answer.json())["code"] == "unreadable"


async def test_a_bomb_is_never_unpacked(serving: Serving) -> None:
    async with serving() as site:
        await fill(site, 1)
        core = site.listener.core
        number = core.catalog.get("orders").number
        size = 8 << 20
        offsets = [i * (size >> 5) for i in range(33)]
        columns = column(offsets, random.Random(1).randbytes(20_000).ljust(size, b"0"))
        site.broker.write(
            crafted(squeezed(Codec.ZSTD, columns), codec=Codec.ZSTD, topic=number, count=32)
        )
        await site.broker.publish("orders", "last")
        page = await explore(site, limit=2)
        assert (len(page["messages"]), page["scanned_bytes"] > size) == (2, True)
        # The broker took it under other limits.
        core.unpacker.limits = core.unpacker.limits._replace(ratio_max=100)
        page = await explore(site)
        assert texts(page) == ["last", "0"]
        assert page["scanned_bytes"] < 1 << 20
        assert [gap["reason"] for gap in page["gaps"]] == ["unreadable"]


async def test_damage_on_disk_is_a_gap_in_both_directions(serving: Serving, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    async with serving(path=folder) as site:
        await site.broker.create_topic("orders")
        for number in range(5):
            await site.broker.publish("orders", f"message {number} " + "x" * 100)
    (log,) = [p for p in folder.rglob("*.log") if b"message 2" in p.read_bytes()]
    data = bytearray(log.read_bytes())
    at = data.index(b"message 2")
    data[at : at + 9] = b"destroyed"
    log.write_bytes(data)
    # So that a start does not believe what a clean stop wrote down.
    for kept in folder.rglob("*clean*"):
        kept.unlink()
    async with serving(path=folder) as site:
        for direction in ("backward", "forward"):
            page = await explore(site, direction=direction, preview_bytes=9)
            found = texts(page)
            expected = [f"message {number}" for number in (0, 1, 3, 4)]
            assert found == (expected[::-1] if direction == "backward" else expected)
            (gap,) = page["gaps"]
            assert (gap["from"], gap["to"], gap["reason"]) == (2, 3, "damaged")
        where = {"topic": "orders", "partition": 0, "offset": 2}
        async with site.http.get("/v1/explore/message", params=where) as answer:
            assert (await answer.json())["code"] == "damaged"


async def test_history_is_read_from_disk_in_both_directions(
    serving: Serving, tmp_path: Path
) -> None:
    folder = tmp_path / "data"
    values: list[bytes | None] = [b"%d " % i + b"x" * 1000 for i in range(20)]
    async with serving(path=folder) as site:
        await site.broker.create_topic("orders")
        for _ in range(200):
            write(site, values)
    async with serving(path=folder) as site:
        for direction in ("backward", "forward"):
            page = await explore(site, direction=direction, limit=500, preview_bytes=0)
            found = [row["offset"] for row in page["messages"]]
            while page["next"]:
                page = await explore(
                    site, direction=direction, limit=500, preview_bytes=0, position=page["next"]
                )
                found += [row["offset"] for row in page["messages"]]
            assert found == (
                list(range(4000)) if direction == "forward" else list(range(3999, -1, -1))
            )


@pytest.mark.parametrize("seed", range(6))
async def test_whatever_a_request_may_cost_every_message_comes_once(
    serving: Serving, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    expected: list[tuple[str, int, int]] = []
    async with serving(path=tmp_path / "data" if seed % 2 else None) as site:
        for name in ("a.x", "a.y", "a.z"):
            await site.broker.create_topic(name, partitions=chance.randint(1, 3))
        for _ in range(60):
            topic = site.listener.core.catalog.get(chance.choice(("a.x", "a.y", "a.z")))
            partition = chance.choice(topic.partitions)
            values: list[bytes | None] = [
                chance.choice((b"yes", b"no", None)) for _ in range(chance.randint(1, 40))
            ]
            first = partition.next_offset
            expected += [
                (topic.name, partition.index, first + i)
                for i, value in enumerate(values)
                if value == b"yes"
            ]
            codec = chance.choice(list(Codec))
            write(site, values, topic.name, partition=partition.index, codec=codec)
            await asyncio.sleep(0.001)
        for direction in ("backward", "forward"):
            found: list[tuple[str, int, int]] = []
            position: dict[str, Any] = {}
            while True:
                page = await explore(
                    site,
                    topic="a.*",
                    text="yes",
                    direction=direction,
                    limit=chance.choice((1, 3, 500)),
                    scan_bytes=chance.choice((1, 2000, 1 << 20)),
                    **position,
                )
                rows = page["messages"]
                found += [(row["topic"], row["partition"], row["offset"]) for row in rows]
                if not page["next"]:
                    break
                position = {"position": page["next"]}
            assert sorted(found) == sorted(expected)


async def test_compacted_topics_have_holes_that_nobody_notices(
    serving: Serving, tmp_path: Path
) -> None:
    async with serving(path=tmp_path / "data") as site:
        await site.broker.create_topic("orders", cleanup="compact")
        for number in range(300):
            await site.broker.publish("orders", str(number), key=f"k{number % 3}")
        await site.broker.compact_topic("orders")
        assert texts(await explore(site)) == ["299", "298", "297"]
        assert texts(await explore(site, direction="forward")) == ["297", "298", "299"]
        assert texts(await explore(site, start=298, limit=1)) == ["298"]
        where = {"topic": "orders", "partition": 0, "offset": 5}
        assert (await ask(site, "/v1/explore/message", 416, where))["code"]


async def test_what_was_deleted_under_a_position_is_a_gap(serving: Serving) -> None:
    async with serving() as site:
        await fill(site, 10)
        page = await explore(site, limit=2, direction="forward")
        live = await explore(site)
        await site.broker.delete_records("orders", {0: 5})
        page = await explore(site, direction="forward", position=page["next"])
        assert texts(page) == ["5", "6", "7", "8", "9"]
        assert page["gaps"][0]["reason"] == "retention"
        # A topic of the same name that was made again is another one.
        await site.broker.delete_topic("orders")
        await fill(site, 2)
        assert texts(await explore(site, after=live["after"])) == ["1", "0"]


async def test_patterns_read_several_topics_in_the_order_of_time(serving: Serving) -> None:
    async with serving() as site:
        for number in range(12):
            await site.broker.publish(f"a.{number % 3}", str(number))
        await site.broker.publish("b", "no")
        page = await explore(site, topic="a.*")
        assert texts(page) == [str(number) for number in range(11, -1, -1)]
        assert (page["topics"], page["all_topics"]) == (3, True)
        page = await explore(site, topic=["a.1", "b"])
        assert texts(page) == ["no", "10", "7", "4", "1"]
        assert (await explore(site, topic="none.*"))["messages"] == []
        await explore(site, 404, topic="none")


async def test_of_many_topics_those_with_the_newest_messages_are_read(serving: Serving) -> None:
    async with serving() as site:
        for number in range(250):
            await site.broker.create_topic(f"a.{number:03}")
        await site.broker.publish("a.007", "old")
        await site.broker.publish("a.249", "new")
        page = await explore(site, topic=">")
        assert texts(page) == ["new", "old"]
        assert (page["topics"], page["all_topics"]) == (200, False)


async def test_a_topic_of_too_many_partitions_is_read_in_parts(serving: Serving) -> None:
    async with serving() as site:
        await site.broker.create_topic("orders", partitions=600)
        await site.broker.publish("orders", "x", partition=599)
        problem = await explore(site, 429, topic="orders")
        assert "partition=" in problem["detail"]
        assert texts(await explore(site, partition=599)) == ["x"]


async def test_only_what_may_be_read_is_shown() -> None:
    async with guarded() as site:
        reader = site.key("reader", subscribe=("a.open", "b"))
        admin = site.key("boss", Role.ADMIN)
        for name in ("a.open", "a.secret", "b"):
            await site.broker.create_topic(name)
            await site.broker.publish(name, f"in {name}")
        for path in ("/v1/explore", "/v1/explore/range"):
            status, problem = await site.ask("GET", f"{path}?topic=a.secret", key=reader)
            assert (status, problem["code"]) == (403, "forbidden")
            status, _ = await site.ask("GET", f"{path}?topic=a.secret")
            assert status == 401
        where = "topic=a.secret&partition=0&offset=0"
        status, _ = await site.ask("GET", f"/v1/explore/message?{where}", key=reader)
        assert status == 403
        # In both orders: what is remembered of a pattern is not somebody else's.
        for _ in range(2):
            status, page = await site.ask("GET", "/v1/explore?topic=a.*", key=admin)
            assert sorted(texts(page)) == ["in a.open", "in a.secret"]
            status, page = await site.ask("GET", "/v1/explore?topic=a.*", key=reader)
            assert (status, texts(page), page["topics"]) == (200, ["in a.open"], 1)
            assert "secret" not in str(page)
            assert page["all_topics"]
        status, page = await site.ask("GET", "/v1/explore/range?topic=%3E", key=reader)
        assert (page["topics"], page["messages"]) == (2, 2)
        site.key("reader", subscribe=("b",))
        status, page = await site.ask("GET", "/v1/explore?topic=a.*", key=reader)
        assert (status, page["messages"]) == (200, [])


async def test_the_range_says_from_when_to_when_and_counts(
    serving: Serving, tmp_path: Path
) -> None:
    async with serving(path=tmp_path / "data") as site:
        await site.broker.create_topic("orders", partitions=2)
        params: dict[str, Any] = {"topic": "orders", "buckets": 10}
        empty = await ask(site, "/v1/explore/range", 200, params)
        assert (empty["oldest"], empty["counts"], empty["messages"]) == ("", [], 0)
        for number in range(40):
            await site.broker.publish("orders", str(number))
            await asyncio.sleep(0.002)
        got = await ask(site, "/v1/explore/range", 200, params)
        newest = (await explore(site, limit=1))["messages"][0]
        oldest = (await explore(site, limit=1, direction="forward"))["messages"][0]
        assert (got["oldest"], got["newest"]) == (oldest["time"], newest["time"])
        assert sum(got["counts"]) == got["messages"] == 40
        assert sum(count > 0 for count in got["counts"]) > 3


async def test_a_topic_may_go_while_it_is_looked_at(serving: Serving, tmp_path: Path) -> None:
    async with serving(path=tmp_path / "data") as site:
        await fill(site, 0)
        for _ in range(50):
            write(site, [b"x" * 10_000] * 10)
        looks = [explore_any(site, text="never") for _ in range(5)]
        tasks = [asyncio.ensure_future(look) for look in looks]
        await asyncio.sleep(0.01)
        await site.broker.delete_topic("orders")
        assert set(await asyncio.gather(*tasks)) <= {200, 404, 409, 410}


async def explore_any(site: Site, **params: Any) -> int:
    async with site.http.get("/v1/explore", params={"topic": "orders"} | params) as answer:
        await answer.read()
        return answer.status


async def test_many_looks_at_once_wait_for_each_other(serving: Serving) -> None:
    async with serving() as site:
        await fill(site, 0)
        for _ in range(20):
            write(site, [b"%d" % i for i in range(5000)])
        statuses = await asyncio.gather(*(explore_any(site, text="4999") for _ in range(40)))
        assert set(statuses) == {200}


@pytest.mark.parametrize("direction", ["backward", "forward"])
async def test_of_many_partitions_little_is_held(
    serving: Serving, monkeypatch: pytest.MonkeyPatch, direction: str
) -> None:
    held: list[int] = []
    fetch = ExplorerScan._fetch_dry

    async def weighed(self: ExplorerScan, first: Any) -> None:
        await fetch(self, first)
        pieces = [piece for reach in self.reaches for piece in reach.pieces]
        waiting = [one.data for reach in self.reaches for one in reach.held]
        held.append(sum(len(piece) for piece in pieces if isinstance(piece, memoryview)))
        held[-1] += sum(map(len, waiting))

    monkeypatch.setattr(ExplorerScan, "_fetch_dry", weighed)
    # Not what a slow machine can do within the time of a request.
    monkeypatch.setattr(explorer, "_SECONDS_MAX", 60.0)
    async with serving() as site:
        await site.broker.create_topic("orders", partitions=20)
        for _ in range(10):
            for partition in range(20):
                await site.broker.publish("orders", b"x" * 30_000, partition=partition)
        page = await explore(site, text="nothing", direction=direction)
        assert (page["ended"], page["scanned_messages"]) == ("end", 200)
        # Of each partition two messages at a time, or three.
        assert max(held) <= 20 * 3 * 31_000


async def test_a_topic_that_is_deleted_meanwhile_is_left_out_of_many(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch = ExplorerScan._fetch_dry

    async with serving() as site:

        async def late(self: ExplorerScan, first: Any) -> None:
            if "t.b" in [topic.name for topic in await site.broker.topics()]:
                await site.broker.delete_topic("t.b")
            await fetch(self, first)

        await fill(site, 3, "t.a")
        await fill(site, 3, "t.b")
        monkeypatch.setattr(ExplorerScan, "_fetch_dry", late)
        page = await explore(site, topic="t.*")
        assert (texts(page), page["ended"]) == (["2", "1", "0"], "end")
        await fill(site, 3, "t.b")
        await explore(site, status=409, topic="t.b")


async def test_few_ranges_are_found_at_a_time(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = most = 0
    find = explorer_details._oldest_us

    async def counted(*about: Any) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.005)
        running -= 1
        return await find(*about)

    monkeypatch.setattr(explorer_details, "_oldest_us", counted)
    async with serving() as site:
        await fill(site, 40, partitions=20)
        asked = ({"topic": "orders", "partition": [number], "buckets": 60} for number in range(20))
        pages = await asyncio.gather(*(ask(site, "/v1/explore/range", 200, one) for one in asked))
        assert sum(page["messages"] for page in pages) == 40
    assert most <= 2
