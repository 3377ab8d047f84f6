"""The explorer in the browser: live tail, history, conditions, one message, and what can be done
with it. Effects are checked through a client."""

from __future__ import annotations

import ast
import asyncio
import json
import re
from base64 import b64encode
from typing import Any

import pytest
from playwright.async_api import Locator, Page, expect

from fanlog.client.aio import Client
from fanlog.format.batch import encode_batch
from fanlog.identity import Role
from tests.dashboard.boards import Board, axe, fits
from tests.dashboard.conftest import Dashboard
from tests.format.crafted import column, crafted

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01".encode()
NASTY = 'it\'s "q" \\ $HOME `id` !x %s\n\ttab é \U0001f600 \u202e {{i}}'


def rows(page: Page) -> Locator:
    return page.get_by_role("table", name="Messages").locator("tbody tr[data-row]")


def panel(page: Page) -> Locator:
    return page.get_by_role("complementary", name="Message")


def write(board: Board, topic: str, values: list[bytes | None]) -> None:
    number = board.listener.core.catalog.get(topic).number
    board.broker.write(encode_batch(values, topic=number))


async def read_all(client: Client, topic: str) -> list[Any]:
    """All messages of a topic, by partition and offset."""
    info = await client.describe_topic(topic)
    found: list[Any] = []
    for partition in info.partitions:
        offset = partition.start_offset
        while offset < partition.visible_end:
            fetched = await client.fetch(topic, partition.partition, offset)
            for batch in fetched.batches:
                for i, at in enumerate(batch.offsets):
                    if at >= offset:
                        found.append((batch.keys[i], batch.values[i], batch.columns.headers(i)))
                offset = batch.next_offset
    return found


async def test_somebody_new_finds_the_newest_message_of_a_topic(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        for number in range(3):
            await board.broker.publish("orders", f"message {number}")
        async with board.visit("/explorer") as page:
            await page.get_by_role("button", name="orders").click()
            await expect(rows(page).first).to_contain_text("message 2")
            await board.broker.publish("orders", "the newest")
            await expect(rows(page).first).to_contain_text("the newest")
            await expect(rows(page)).to_have_count(4)
            assert "topic=orders" in page.url


async def test_a_topic_is_typed_and_suggested(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        for name in ("orders.eu", "orders.us", "other"):
            await board.broker.publish(name, f"in {name}")
        async with board.visit("/explorer") as page:
            topic = page.get_by_label("Topic")
            await topic.fill("orders")
            options = page.locator("#explorer-topics option")
            await expect(options).to_have_count(2)
            await topic.fill("orders.*")
            await topic.press("Enter")
            await expect(rows(page)).to_have_count(2)
            await expect(page.get_by_text("2 topics")).to_be_visible()
            await topic.fill("orders.eu, other")
            await topic.press("Enter")
            await expect(rows(page)).to_have_count(2)
            await expect(rows(page).filter(has_text="in other")).to_have_count(1)


async def test_a_live_tail_pauses_and_resumes(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await board.broker.publish("orders", "first")
        async with board.visit("/explorer?topic=orders") as page:
            await expect(rows(page)).to_have_count(1)
            await page.get_by_role("button", name="Pause").click()
            status = page.get_by_role("status").filter(has_text="message")
            await expect(status).to_contain_text("Paused")
            await board.broker.publish("orders", "second")
            await asyncio.sleep(1.5)
            await expect(rows(page)).to_have_count(1)
            await page.get_by_role("button", name="Resume").click()
            await expect(rows(page).first).to_contain_text("second")
            # By keys.
            await page.locator("h1").focus()
            await page.keyboard.press("p")
            await expect(status).to_contain_text("Paused")
            await page.keyboard.press("Space")
            await expect(status).to_contain_text("Live")
            await page.keyboard.press("h")
            await expect(page.get_by_label("From offset")).to_be_visible()
            await page.keyboard.press("l")
            await expect(page.get_by_role("button", name="Pause")).to_be_visible()


async def test_a_flood_is_shown_in_part_and_the_rest_is_counted(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await board.broker.publish("orders", "first")
        async with board.visit("/explorer?topic=orders") as page:
            await expect(rows(page)).to_have_count(1)
            values: list[bytes | None] = [b"%d" % number for number in range(20_000)]
            for _ in range(10):
                for _ in range(10):
                    write(board, "orders", values)
                await asyncio.sleep(0.7)
            await expect(page.get_by_text(re.compile(r"[\d.]+ (k|M) skipped"))).to_be_visible()
            await expect(rows(page).first).to_contain_text("19999")
            assert await rows(page).count() <= 500
            # All of it is there for who looks for it.
            assert (await board.broker.describe_topic("orders")).records == 2_000_001


async def test_history_begins_at_an_offset_or_a_time(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        for number in range(250):
            await board.broker.publish("orders", f"message {number};")
        async with board.visit("/explorer?topic=orders") as page:
            await page.get_by_role("button", name="History").click()
            await expect(rows(page)).to_have_count(100)
            await expect(rows(page).first).to_contain_text("message 249;")
            await page.get_by_role("button", name="Older messages").click()
            await expect(rows(page)).to_have_count(200)
            await page.get_by_role("button", name="Older messages").click()
            await expect(rows(page)).to_have_count(250)
            await expect(page.get_by_role("button", name="Older messages")).to_have_count(0)
            await page.get_by_label("From offset").fill("42")
            await page.get_by_label("From offset").press("Enter")
            await expect(rows(page).first).to_contain_text("message 42;")
            await expect(rows(page).nth(1)).to_contain_text("message 43;")
            await page.get_by_role("combobox", name="Order").select_option("newest")
            await expect(rows(page).nth(1)).to_contain_text("message 41;")
            assert "offset=42" in page.url
            # The slider: to the very beginning, and back.
            slider = page.get_by_label("Time", exact=True)
            await page.get_by_role("combobox", name="Order").select_option("oldest")
            await slider.focus()
            await page.keyboard.press("Home")
            await expect(rows(page).first).to_contain_text("message 0;")
            assert "time=" in page.url
            await page.get_by_role("button", name="From the newest").click()
            await expect(rows(page).first).to_contain_text("message 249;")
            await page.get_by_label("From time").fill("2020-01-01T00:00:00")
            await page.get_by_label("From time").blur()
            await expect(rows(page).first).to_contain_text("message 0;")
            await page.get_by_role("button", name="Live").click()
            await expect(rows(page).first).to_contain_text("message 249;")


async def publish_examples(board: Board) -> None:
    client = board.broker
    await client.create_topic("orders", partitions=2)
    first = {"order": {"total": 5, "id": 9007199254740993}, "what": "tea"}
    await client.publish("orders", json.dumps(first), key="a-1", partition=0, headers={"t": b"x"})
    second = {"order": {"total": 50, "id": 2}, "what": "Tea"}
    headers = {"t": b"y", "traceparent": PARENT}
    await client.publish("orders", json.dumps(second), key="b-2", partition=1, headers=headers)
    await client.publish("orders", bytes(range(256)), key=b"\xff\xfe", partition=0)


async def test_an_offset_that_is_not_there_is_explained(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await board.broker.publish("orders", "first")
        async with board.visit("/explorer?topic=orders&mode=history") as page:
            offset = page.get_by_label("From offset")
            await offset.fill("abc")
            await offset.press("Enter")
            await expect(page.get_by_role("alert")).to_have_text("Give a whole number.")
            await expect(rows(page)).to_have_count(1)
            await offset.fill("999")
            await expect(page.get_by_role("alert")).to_have_count(0)
            await offset.press("Enter")
            await expect(page.get_by_text("No messages from there on.")).to_be_visible()
            # From here to the topic itself.
            await page.get_by_role("link", name="Readers and settings of orders").click()
            await page.wait_for_function("() => location.hash === '#/topics/orders'")


async def test_the_broker_checks_conditions(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await publish_examples(board)
        async with board.visit("/explorer?topic=orders&mode=history") as page:
            await expect(rows(page)).to_have_count(3)

            async def leaves(count: int, text: str = "") -> None:
                await expect(rows(page)).to_have_count(count)
                if text:
                    await expect(rows(page).first).to_contain_text(text)
                if await page.get_by_role("button", name="Clear 1 filter").count():
                    await page.get_by_role("button", name="Clear 1 filter").click()
                    await expect(rows(page)).to_have_count(3)

            await page.get_by_label("Text in the value").fill("TEA")
            await leaves(2)
            await page.get_by_label("Key", exact=True).fill("a-")
            await page.get_by_label("Key", exact=True).press("Enter")
            await leaves(1, "a-1")
            await page.get_by_label("How the key fits").select_option("base64")
            await page.get_by_label("Key", exact=True).fill("//4=")
            await page.get_by_label("Key", exact=True).press("Enter")
            await leaves(1, "binary")
            await page.get_by_text("More filters").click()
            await page.get_by_label("In JSON").fill("order.total > 10")
            await page.get_by_label("In JSON").press("Enter")
            await leaves(1, "b-2")
            await page.get_by_label("Header").fill("t=x")
            await page.get_by_label("Header").press("Enter")
            await leaves(1, "a-1")
            await page.get_by_label("Trace id").fill(TRACE)
            await page.get_by_label("Trace id").press("Enter")
            await leaves(1, "b-2")
            await page.get_by_label("Partition").fill("1")
            await page.get_by_label("Partition").press("Enter")
            await expect(rows(page)).to_have_count(1)


async def test_what_is_shown_is_in_the_address(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await publish_examples(board)
        path = "/explorer?topic=orders&mode=history&text=tea&case=true&json=order.total+%3E+1"
        async with board.visit(path) as page:
            await expect(rows(page)).to_have_count(1)
            await expect(page.get_by_label("Text in the value")).to_have_value("tea")
            await expect(page.get_by_label("In JSON")).to_have_value("order.total > 1")
            await expect(page.get_by_label("Match case")).to_be_checked()
            await page.get_by_label("Match case").uncheck()
            await expect(rows(page)).to_have_count(2)
            await page.reload()
            await expect(rows(page)).to_have_count(2)
        link = "/explorer?topic=orders&partition=1&offset=0"
        async with board.visit(link) as page:
            await expect(rows(page)).to_have_count(1)
            await expect(rows(page).first).to_contain_text("b-2")


async def test_a_condition_that_is_wrong_is_explained(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await publish_examples(board)
        path = "/explorer?topic=orders&mode=history&json=%3E+1"
        async with board.visit(path, allow={400}) as page:
            await expect(page.get_by_role("alert")).to_contain_text("Write a path")
            await page.get_by_role("button", name="Clear 1 filter").click()
            await expect(rows(page)).to_have_count(3)


async def test_a_message_opens_as_json_text_and_hex(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await publish_examples(board)
        async with board.visit("/explorer?topic=orders") as page:
            await rows(page).filter(has_text="a-1").click()
            shown = panel(page)
            # Numbers above 2^53 keep their digits.
            await expect(shown.locator(".json-tree")).to_contain_text("9007199254740993")
            fold = shown.get_by_role("button", name="Close order")
            await fold.click()
            await expect(shown.locator(".json-tree")).not_to_contain_text("9007199254740993")
            await shown.get_by_role("button", name="Open order").click()
            await expect(shown.locator(".json-tree")).to_contain_text("9007199254740993")
            await shown.get_by_role("tab", name="Text").click()
            await expect(shown).to_contain_text('"total": 5')
            await shown.get_by_role("tab", name="Hex").click()
            await expect(shown).to_contain_text("00000000  7b 22 6f 72")
            await expect(shown.get_by_role("table", name="Headers")).to_contain_text("x")
            await page.keyboard.press("Escape")
            await expect(shown).to_have_count(0)
            # Bytes are shown as they are.
            await rows(page).filter(has_text="binary").click()
            await expect(panel(page)).to_contain_text("000000f0  f0 f1 f2 f3")
            await expect(panel(page)).to_contain_text("//4=")
            await panel(page).get_by_role("tab", name="Text").click()
            await expect(panel(page)).to_contain_text("not UTF-8")
            await panel(page).get_by_role("button", name="Copy a link to this message").click()
            link = await page.evaluate("() => navigator.clipboard.readText()")
            assert re.search(r"topic=orders&partition=0&offset=1$", link)
            await panel(page).get_by_role("button", name="Messages around it").click()
            await expect(rows(page)).to_have_count(2)


async def test_a_large_value_is_cut_until_all_of_it_is_wanted(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await board.broker.create_topic("orders", message_bytes_max=8 << 20)
        value = "a" * (2 << 20) + "the end"
        await board.broker.publish("orders", value)
        async with board.visit("/explorer?topic=orders") as page:
            await rows(page).first.click()
            await panel(page).get_by_role("button", name="Load all of it").click()
            await panel(page).get_by_role("button", name=re.compile("^Show all 2,09")).click()
            await expect(panel(page)).to_contain_text("the end")


async def test_two_messages_are_compared(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await publish_examples(board)
        async with board.visit("/explorer?topic=orders&mode=history") as page:
            for key in ("a-1", "b-2"):
                await rows(page).filter(has_text=key).get_by_role("checkbox").check()
            await page.get_by_role("button", name="Compare 2 of 2").click()
            dialog = page.get_by_role("dialog", name="Compare two messages")
            minus, plus = dialog.locator("pre .minus"), dialog.locator("pre .plus")
            await expect(minus.filter(has_text='"what": "tea"')).to_have_count(1)
            await expect(plus.filter(has_text='"what": "Tea"')).to_have_count(1)
            await expect(minus.filter(has_text="key: a-1")).to_have_count(1)
            await expect(plus.filter(has_text="traceparent")).to_have_count(1)
            await axe(page)
            await page.keyboard.press("Escape")
            await page.get_by_role("button", name="Clear selection").click()
            await expect(page.get_by_role("button", name="Compare 2 of 2")).to_have_count(0)


async def made_code(page: Page, message: dict[str, Any]) -> dict[str, str]:
    return await page.evaluate(
        """async (detail) => {
            const code = await import("/dashboard/pages/explorer_code.js");
            const parts = code.partsOf(detail);
            return {
                python: code.pythonCode(parts, "fanlog://h:7420"),
                curl: code.curlCode(parts, "http://h:7422"),
                redis: code.redisCode(parts, "h"),
            };
        }""",
        message,
    )


async def shell_words(code: str, program: str) -> tuple[list[bytes], bytes]:
    """What a program would get: its arguments, and its input if it reads one."""
    script = f"""{program}() {{ printf '%s\\0' "$@"; case "$*" in *-x*) cat;; esac; }}\n{code}"""
    shell = await asyncio.create_subprocess_exec(
        "sh", "-c", script, stdout=asyncio.subprocess.PIPE, stdin=asyncio.subprocess.DEVNULL
    )
    said, _ = await shell.communicate()
    assert shell.returncode == 0
    *words, rest = said.split(b"\0") if b"-x" not in said else said.split(b"\0", 7)
    return words, rest


VALUES = [
    NASTY.encode(),
    b"",
    b'{"a": "\\\n"}',
    b"\xff\x00'\"\\\n$(id)",
    b'{"a": [1, 2.50, "\'"]}',
    None,
]


@pytest.mark.parametrize("value", VALUES)
async def test_code_publishes_exactly_the_message(
    dashboard: Dashboard, value: bytes | None
) -> None:
    key, headers = NASTY.encode(), [("it's", b"\xfe'"), ("content-type", b"application/json")]
    message = {
        "topic": "a'b $c",
        "key_base64": b64encode(key).decode(),
        "headers": [[name, b64encode(content).decode()] for name, content in headers],
        "value_base64": None if value is None else b64encode(value).decode(),
    }
    async with dashboard() as board, board.visit("/explorer") as page:
        code = await made_code(page, message)
    # Python
    (call,) = [
        node
        for node in ast.walk(ast.parse(code["python"]))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "client.publish"
    ]
    topic, given = (ast.literal_eval(one) for one in call.args)
    named = {one.arg: ast.literal_eval(one.value) for one in call.keywords}
    assert topic == "a'b $c"
    assert (given.encode() if isinstance(given, str) else given) == value
    assert named == {"key": NASTY, "headers": dict(headers)}
    # curl
    words, _ = await shell_words(code["curl"], "curl")
    assert words[0] == b"http://h:7422/v1/topics/a'b%20%24c/messages"
    body = json.loads(words[words.index(b"--data-binary") + 1])
    assert body["key"] == NASTY
    assert body["headers_base64"] == {"it's": b64encode(b"\xfe'").decode()}
    if value is None:
        assert body["deleted"] is True
        assert "can't publish" in code["redis"]
        return
    if "json" in body:
        assert body["json"] == json.loads(value)
        assert value in words[-1]
    elif "text" in body:
        assert body["text"].encode() == value
    else:
        assert body["base64"] == b64encode(value).decode()
    # redis-cli
    words, rest = await shell_words(code["redis"].replace("redis-cli", "redis_cli"), "redis_cli")
    assert words[:4] == [b"-h", b"h", b"-p", b"7421"]
    if b"-x" in words:
        assert (words[4:], rest) == ([b"-x", b"PUBLISH", b"a'b $c"], value)
    else:
        assert words[4:] == [b"PUBLISH", b"a'b $c", value]


async def test_code_is_copied_and_works(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await board.broker.publish("orders", NASTY, key="it's", headers={"a": b"\xff"})
        async with board.visit("/explorer?topic=orders") as page:
            await rows(page).first.click()
            await panel(page).get_by_role("tab", name="curl").click()
            await panel(page).get_by_role("button", name="Copy the code").click()
            code = await page.evaluate("() => navigator.clipboard.readText()")
        shell = await asyncio.create_subprocess_exec(
            "sh", "-c", code, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
        )
        if await shell.wait() == 127:
            pytest.skip("curl is not installed")
        assert shell.returncode == 0
        first, second = await read_all(board.broker, "orders")
        assert (first[0], first[1]) == (second[0], second[1]) == (b"it's", NASTY.encode())
        assert second[2]["a"] == b"\xff"


async def test_a_message_is_published_with_key_and_headers(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await board.broker.create_topic("orders")
        async with board.visit("/explorer?topic=orders") as page:
            await page.get_by_role("button", name="Publish", exact=True).click()
            dialog = page.get_by_role("dialog", name="Publish messages")
            await expect(dialog.get_by_label("Topic")).to_have_value("orders")
            await dialog.get_by_label("Key as").select_option("text")
            await dialog.get_by_label("Key", exact=True).fill("k1")
            await dialog.get_by_role("textbox", name="Headers").fill("type: paid\nregion: eu: west")
            await dialog.get_by_label("Value", exact=True).fill('{"id": 9007199254740993,')
            await dialog.get_by_role("button", name="Publish", exact=True).click()
            await expect(dialog.get_by_role("alert")).to_contain_text("not JSON")
            await dialog.get_by_label("Value", exact=True).fill('{"id": 9007199254740993}')
            await axe(page)
            await dialog.get_by_role("button", name="Publish", exact=True).click()
            await expect(dialog).to_have_count(0)
            await expect(rows(page).first).to_contain_text("9007199254740993")
        ((key, value, headers),) = await read_all(board.broker, "orders")
        assert (key, value) == (b"k1", b'{"id": 9007199254740993}')
        assert (headers["type"], headers["region"]) == (b"paid", b"eu: west")


async def test_many_are_published_from_a_template(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        async with board.visit("/explorer?topic=orders", allow={404}) as page:
            await page.get_by_role("button", name="Publish", exact=True).click()
            dialog = page.get_by_role("dialog", name="Publish messages")
            await dialog.get_by_label("Key as").select_option("text")
            await dialog.get_by_label("Key", exact=True).fill("k{{i}}")
            await dialog.get_by_label("Value", exact=True).fill(
                '{"n": {{i}}, "id": "{{uuid}}", "at": "{{now}}"}'
            )
            await dialog.get_by_label("How many").fill("99999")
            await expect(dialog.get_by_role("button", name="Publish 99,999")).to_be_disabled()
            await dialog.get_by_label("How many").fill("1200")
            await dialog.get_by_role("button", name="Publish 1,200 messages").click()
            await expect(dialog).to_have_count(0)
            await expect(page.get_by_text("1,200 messages published")).to_be_visible()
        found = [
            (key, json.loads(value)) for key, value, _ in await read_all(board.broker, "orders")
        ]
        assert sorted(value["n"] for _, value in found) == list(range(1, 1201))
        assert all(key == b"k%d" % value["n"] for key, value in found)
        assert len({value["id"] for _, value in found}) == 1200
        assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT.*Z", value["at"]) for _, value in found)


async def test_bytes_and_tombstones_are_published(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await board.broker.create_topic("prices", cleanup="compact")
        async with board.visit("/explorer?topic=prices") as page:
            for kind, value in (("base64", "/wA="), ("text", " plain "), ("deleted", "")):
                await page.get_by_role("button", name="Publish", exact=True).click()
                dialog = page.get_by_role("dialog", name="Publish messages")
                await dialog.get_by_label("Key as").select_option("base64")
                await dialog.get_by_label("Key", exact=True).fill("/w==")
                await dialog.get_by_label("Value as").select_option(kind)
                if value:
                    await dialog.get_by_label("Value", exact=True).fill(value)
                await dialog.get_by_role("button", name="Publish", exact=True).click()
                await expect(dialog).to_have_count(0)
            await expect(rows(page)).to_have_count(3)
            await expect(rows(page).first).to_contain_text("deleted")
        found = await read_all(board.broker, "prices")
        assert [(key, value) for key, value, _ in found] == [
            (b"\xff", b"\xff\x00"),
            (b"\xff", b" plain "),
            (b"\xff", None),
        ]


async def test_a_message_is_sent_again(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        value = bytes(range(256))
        headers = {"a": b"\xfe", "b": b" c ", "d": b"e"}
        await board.broker.publish("orders", value, key=b"\xff", headers=headers)
        async with board.visit("/explorer?topic=orders") as page:
            await rows(page).first.click()
            await panel(page).get_by_role("button", name="Send again").click()
            dialog = page.get_by_role("dialog", name="Send this message again")
            await dialog.get_by_role("button", name="Publish", exact=True).click()
            await expect(page.get_by_text("Published to orders")).to_be_visible()
            await panel(page).get_by_role("button", name="Send again").click()
            await dialog.get_by_label("Topic").fill("other")
            await dialog.get_by_role("button", name="Publish", exact=True).click()
            await expect(page.get_by_text("Published to other")).to_be_visible()
        for topic, count in (("orders", 2), ("other", 1)):
            found = await read_all(board.broker, topic)
            assert len(found) == count
            assert (found[-1][0], found[-1][1]) == (b"\xff", value)
            assert {name: found[-1][2][name] for name in headers} == headers


async def test_a_trace_is_followed_over_topics(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        for topic in ("orders", "payments"):
            await board.broker.publish(topic, f"in {topic}", headers={"traceparent": PARENT})
            await board.broker.publish(topic, "of no trace")
        async with board.visit("/explorer?topic=orders") as page:
            await rows(page).filter(has_text="in orders").click()
            await panel(page).get_by_role("button", name="Follow the trace").click()
            dialog = page.get_by_role("dialog", name="Trace")
            await expect(dialog.get_by_text("append orders")).to_be_visible()
            await axe(page)
            await dialog.get_by_role("button", name="Show its messages in all topics").click()
            await expect(rows(page)).to_have_count(2)
            await expect(rows(page).filter(has_text="in payments")).to_have_count(1)
            assert TRACE in page.url


async def test_what_can_not_be_read_is_said(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await board.broker.publish("orders", "before")
        number = board.listener.core.catalog.get("orders").number
        board.broker.write(crafted(column([0, 9, 2], b"xy"), count=2, topic=number))
        await board.broker.publish("orders", "after")
        async with board.visit("/explorer?topic=orders&mode=history") as page:
            await expect(rows(page)).to_have_count(2)
            await expect(page.get_by_text("offsets 1 to 2 are can't be decoded")).to_have_count(0)
            await expect(page.get_by_text("offsets 1 to 2 can't be decoded")).to_be_visible()


async def test_a_viewer_reads_and_changes_nothing(dashboard: Dashboard) -> None:
    async with dashboard(auth=True) as board:
        await board.user("vera", Role.VIEWER)
        await board.user("lena", None, subscribe=("a.open",), describe=("a.open",))
        for name in ("a.open", "a.secret"):
            await board.broker.publish(name, f"in {name}")
        async with board.visit("/explorer?topic=a.*", login="vera") as page:
            await expect(rows(page)).to_have_count(2)
            await rows(page).first.click()
            await expect(panel(page)).to_contain_text("Publish it with code")
            await expect(page.get_by_role("button", name="Send again")).to_have_count(0)
            await expect(page.get_by_role("button", name="Publish", exact=True)).to_have_count(0)
        async with board.visit("/explorer?topic=a.*", login="lena") as page:
            await expect(rows(page)).to_have_count(1)
            await expect(rows(page).first).to_contain_text("in a.open")
        async with board.visit("/explorer?topic=a.secret", login="lena", allow={403}) as page:
            await expect(page.get_by_role("alert").first).to_contain_text("a.secret")
            await expect(rows(page)).to_have_count(0)


async def test_it_works_by_keyboard_alone(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await publish_examples(board)
        async with board.visit("/explorer") as page:
            await page.get_by_label("Topic").focus()
            await page.keyboard.type("orders")
            await page.keyboard.press("Enter")
            await expect(rows(page)).to_have_count(3)
            await rows(page).first.focus()
            await page.keyboard.press("Space")
            await page.keyboard.press("ArrowDown")
            await page.keyboard.press("Space")
            await expect(page.get_by_role("button", name="Compare 2 of 2")).to_be_visible()
            await page.keyboard.press("Enter")
            await expect(panel(page).locator("h2")).to_be_focused()
            await page.keyboard.press("Escape")
            await expect(panel(page)).to_have_count(0)
            await page.keyboard.press("n")
            await expect(page.get_by_role("dialog", name="Publish messages")).to_be_visible()
            await page.keyboard.press("Escape")
            await expect(page.get_by_role("dialog")).to_have_count(0)


@pytest.mark.parametrize(("dark", "phone"), [(False, False), (True, False), (True, True)])
async def test_everybody_can_use_it(dashboard: Dashboard, dark: bool, phone: bool) -> None:
    async with dashboard(flowing=True) as board:
        path = "/explorer?topic=orders&mode=history&header=x"
        async with board.visit(path, dark=dark, phone=phone) as page:
            await expect(page.get_by_text("No message fits.")).to_be_visible()
            await page.get_by_role("button", name="Clear 1 filter").click()
            await expect(rows(page).first).to_be_visible()
            await axe(page)
            await fits(page)
            await rows(page).first.click()
            await expect(panel(page)).to_contain_text("Publish it with code")
            await axe(page)
            await fits(page)
