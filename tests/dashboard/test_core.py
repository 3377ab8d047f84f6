"""The parts that all pages share: figures, addresses, requests, keys, the palette and dialogs."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.async_api import Page, expect

from tests.dashboard.conftest import Dashboard
from tests.dashboard.page_list import press_keys

FORMATS = [
    ("fmt.count(1234567)", "1,234,567"),
    ("fmt.count(2n ** 60n)", "1,152,921,504,606,846,976"),
    ("fmt.count(null)", "–"),
    ("fmt.short(999)", "999"),
    ("fmt.short(999999)", "1 M"),
    ("fmt.short(1234)", "1.23 k"),
    ("fmt.short(0.004)", "0"),
    ("fmt.bytes(0)", "0 B"),
    ("fmt.bytes(1536)", "1.5 KiB"),
    ("fmt.bytes(2n ** 62n)", "4 EiB"),
    ("fmt.rate(12_500)", "12.5 k/s"),
    ("fmt.percent(0.1234)", "12.3 %"),
    ("fmt.ms(0.05)", "50 µs"),
    ("fmt.ms(1500)", "1.5 s"),
    ("fmt.duration(0)", "0 s"),
    ("fmt.duration(59.99)", "60 s"),
    ("fmt.duration(3661)", "1 h 1 min"),
    ("fmt.duration(86400 * 3)", "3 d"),
    ("fmt.duration(0.25)", "250 ms"),
    ("fmt.ago(Date.now() / 1000 - 120)", "2 min ago"),
    ("fmt.ago(Date.now() / 1000 + 7200)", "in 2 h"),
    ("fmt.ago('')", "–"),
    ("fmt.time('no time')", "–"),
    ("fmt.plural(1, 'topic')", "1 topic"),
    ("fmt.plural(0, 'topic')", "0 topics"),
]


async def asked(page: Page, module: str, expression: str, given: Any = None) -> Any:
    return await page.evaluate(
        f"""async (given) => {{
            const module = await import("/dashboard/core/{module}.js");
            const {{ {", ".join(NAMES[module])} }} = module;
            return {expression};
        }}""",
        given,
    )


NAMES = {
    "format": ["fmt"],
    "router": ["href", "route"],
    "api": ["api", "parse", "stringify"],
    "palette": ["score"],
}


async def test_figures_and_times_read_well(dashboard: Dashboard) -> None:
    async with dashboard() as board, board.visit("/nowhere") as page:
        for expression, wanted in FORMATS:
            assert await asked(page, "format", expression) == wanted, expression


async def test_large_numbers_stay_exact(dashboard: Dashboard) -> None:
    text = '{"offset":9223372036854775807,"small":7,"share":0.5,"text":"9223372036854775807"}'
    async with dashboard() as board, board.visit("/nowhere") as page:
        assert await asked(page, "api", "stringify(parse(given))", text) == text
        assert await asked(page, "api", "typeof parse(given).offset", text) == "bigint"


async def test_every_name_fits_into_an_address(dashboard: Dashboard) -> None:
    # The page of a topic asks for it, and there is no such topic.
    async with dashboard() as board, board.visit("/nowhere", allow={404}) as page:
        for name in ("plain", "a/b", "a?b=c&d", "100 %", "#hash", "späti"):
            path = await asked(page, "api", "api.path`/v1/topics/${given}`", name)
            assert path.count("/") == 3
            address = await asked(
                page, "router", "href(route`/topics/${given}`, {tab: given})", name
            )
            await page.evaluate("address => { location.hash = address }", address)
            found = await page.evaluate(
                "async () => (await import('/dashboard/core/router.js')).currentRoute()"
            )
            assert (found["parts"], found["params"]) == (["topics", name], {"tab": name})


async def test_the_palette_finds_letters_in_their_order(dashboard: Dashboard) -> None:
    async with dashboard() as board, board.visit("/nowhere") as page:
        pages = "['Dead letters', 'Groups', 'Settings']"
        best = f"{pages}.sort((a, b) => score(b, given) - score(a, given))[0]"
        assert await asked(page, "palette", best, "dl") == "Dead letters"
        assert await asked(page, "palette", best, "gup") == "Groups"
        assert await asked(page, "palette", "score('Groups', given)", "xyz") == -1


async def test_an_address_without_a_page_says_so(dashboard: Dashboard) -> None:
    async with dashboard() as board, board.visit("/nowhere") as page:
        await expect(page.get_by_role("heading", name="There is no such page")).to_be_visible()
        await page.get_by_role("link", name="Go to the overview").click()
        await expect(page.get_by_role("heading", name="Overview", level=1)).to_be_visible()


async def test_keys_lead_to_pages_but_not_while_typing(dashboard: Dashboard) -> None:
    async with dashboard() as board, board.visit("/nowhere") as page:
        await press_keys(page, "g t")
        await expect(page.get_by_role("heading", name="Topics", level=1)).to_be_visible()
        await page.keyboard.press("/")
        await page.keyboard.type("g o")
        await expect(page.get_by_role("heading", name="Topics", level=1)).to_be_visible()


@pytest.mark.parametrize("event", ["{key: 'k', ctrlKey: true}", "{key: 'c'}"])
async def test_who_types_at_once_types_into_what_a_key_has_opened(
    dashboard: Dashboard, event: str
) -> None:
    async with dashboard() as board, board.visit("/topics") as page:
        await expect(page.get_by_role("button", name="Create topic").first).to_be_visible()
        # Nothing is painted before the script ends.
        await page.evaluate(
            f"""async () => {{
                document.body.dispatchEvent(
                    new KeyboardEvent("keydown", {{...{event}, bubbles: true, cancelable: true}}));
                for (let i = 0; i < 10; i++) await null;
                document.activeElement.setAttribute("data-typed", "");
            }}"""
        )
        await expect(page.locator("dialog input").first).to_have_attribute("data-typed", "")


async def test_the_palette_opens_a_page_by_keyboard_alone(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await board.broker.create_topic("orders.europe")
        async with board.visit("/nowhere") as page:
            await page.keyboard.press("Control+k")
            await page.keyboard.type("orders.eu")
            await expect(page.get_by_role("option", name="orders.europe")).to_be_visible()
            await page.keyboard.press("Enter")
            await expect(page.get_by_role("heading", name="orders.europe")).to_be_visible()


async def test_a_question_does_not_outlive_its_page(dashboard: Dashboard) -> None:
    async with dashboard() as board, board.visit("/nowhere") as page:
        await page.keyboard.press("?")
        await expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
        await page.evaluate("location.hash = '#/topics'")
        await expect(page.get_by_role("dialog", name="Keys")).to_be_hidden()


async def test_the_colours_are_the_visitors_choice_and_stay(dashboard: Dashboard) -> None:
    async with dashboard() as board, board.visit("/nowhere") as page:
        await page.get_by_role("button", name="Colours: system").click()
        await page.get_by_role("button", name="Colours: light").click()
        assert await page.evaluate("document.documentElement.dataset.theme") == "dark"
        await page.reload()
        await expect(page.get_by_role("button", name="Colours: dark")).to_be_visible()
        assert await page.evaluate("document.documentElement.dataset.theme") == "dark"


async def test_a_broker_that_is_away_is_said_to_be_and_comes_back(dashboard: Dashboard) -> None:
    async with dashboard() as board, board.visit("/nowhere", allow_lost=True) as page:
        await expect(page.get_by_text("Healthy")).to_be_visible()
        await page.context.set_offline(True)
        ask = "async () => (await import('/dashboard/core/api.js')).api.get('/v1/health')"
        with pytest.raises(Exception, match="can't be reached"):
            await page.evaluate(ask)
        await expect(page.get_by_text("Not reachable")).to_be_visible()
        await page.context.set_offline(False)
        await page.evaluate(ask)
        await expect(page.get_by_text("Not reachable")).to_be_hidden()


async def test_a_hidden_tab_asks_nothing(dashboard: Dashboard) -> None:
    async with dashboard() as board, board.visit("/nowhere") as page:
        await expect(page.get_by_text("Healthy")).to_be_visible()
        await page.evaluate(
            """() => {
                Object.defineProperty(document, "hidden", { value: true, configurable: true });
                document.dispatchEvent(new Event("visibilitychange"));
            }"""
        )
        asked_for: list[str] = []
        page.on("request", lambda request: asked_for.append(request.url))
        # As the timers of a page would have it, without the wait.
        await page.evaluate("() => new Promise(done => setTimeout(done, 300))")
        assert asked_for == []
        await page.evaluate(
            """() => {
                Object.defineProperty(document, "hidden", { value: false, configurable: true });
                document.dispatchEvent(new Event("visibilitychange"));
            }"""
        )
        while not asked_for:
            await page.wait_for_timeout(50)
