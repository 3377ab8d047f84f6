"""A broker with a web listener, and visits to its dashboard that end only without a fault."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import axe_playwright_python
import msgspec
from playwright.async_api import Browser, Page, ViewportSize, expect

import fanlog
from fanlog.cli.live import ServedSettings
from fanlog.cli.settings import load_settings
from fanlog.client.aio import Client
from fanlog.config import Config
from fanlog.identity import Role, Rules
from fanlog.listeners.server import NativeListener
from fanlog.listeners.web.server import WebListener
from fanlog.node import Node
from fanlog.security.directory import KeyEntry, UserEntry
from fanlog.security.keys import digest_of, make_key, maybe_parse
from tests.browser.conftest import PATIENCE_MS, new_context
from tests.dashboard.flowing import Flowing

DESKTOP: ViewportSize = {"width": 1280, "height": 800}
PHONE: ViewportSize = {"width": 390, "height": 844}
PASSWORD = "correct horse battery staple"
# A page of the same host, as the browser says of it.
SAME_PAGE = {"Sec-Fetch-Site": "same-origin"}
AXE = Path(axe_playwright_python.__file__).with_name("axe.min.js")
# Chromium logs what breaks the CSP; this makes sure, whatever it calls it.
_REPORT_CSP = """
document.addEventListener("securitypolicyviolation", event => console.error(
  `CSP violation: ${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}`));
"""


# To find the contrast of a text takes axe milliseconds, and a page has thousands. So of texts that
# have the same colours and sizes, as their ancestors do, it looks at three.
_RUN_AXE = """
async coloursOnly => {
  const looks = new Map([[null, ""]]), alike = new Map(), texts = [];
  const look = node => {
    if (!looks.has(node)) {
      const { color, backgroundColor, backgroundImage, opacity, textShadow, fontSize, fontWeight } =
        getComputedStyle(node);
      looks.set(node, [look(node.parentElement), color, backgroundColor, backgroundImage, opacity,
        textShadow, fontSize, fontWeight].join());
    }
    return looks.get(node);
  };
  for (const node of document.body.querySelectorAll("*")) {
    const own = [...node.childNodes].some(one => one.nodeType === 3 && one.data.trim());
    if (!own && !node.matches("input, select, textarea")) continue;
    const count = (alike.get(look(node)) ?? 0) + 1;
    alike.set(look(node), count);
    if (count <= 3) texts.push(node);
  }
  const options = { resultTypes: ["violations"], selectors: false };
  const others = coloursOnly
    ? { ...options, runOnly: ["link-in-text-block"] }
    : { ...options, rules: { "color-contrast": { enabled: false } } };
  const contrast = { ...options, runOnly: ["color-contrast"] };
  const { violations } = await axe.run(document, others);
  if (!texts.length) return violations;
  return [...violations, ...(await axe.run({ include: texts }, contrast)).violations];
}
"""


class Faults(list[str]):
    """What a page did wrong."""

    def watch(self, page: Page, host: str, allow: Collection[int], *, allow_lost: bool) -> None:
        """`allow` has statuses of answers that the test expects. Chromium logs those as errors."""

        def logged(kind: str, text: str, url: str) -> None:
            failed = re.search(r"Failed to load resource.* (?:status of (\d+)|(net::\w+))", text)
            if failed and failed[1] and int(failed[1]) in allow:
                return
            if allow_lost and re.search(r"net::ERR_|WebSocket connection", text):
                return
            if kind == "error":
                self.append(f"console: {text} ({url})")

        def asked(url: str) -> None:
            parts = urlsplit(url)
            if parts.scheme in ("http", "https", "ws", "wss") and parts.netloc != host:
                self.append(f"a request to another host: {url}")

        def answered(status: int, url: str) -> None:
            if status >= 500 and status not in allow:
                self.append(f"status {status}: {url}")

        page.on("console", lambda one: logged(one.type, one.text, one.location["url"]))
        page.on("pageerror", lambda fault: self.append(f"error: {fault}\n{fault.stack}"))
        page.on("request", lambda request: asked(request.url))
        page.on("websocket", lambda socket: asked(socket.url))
        page.on("response", lambda response: answered(response.status, response.url))


@dataclass
class Board:
    """A live broker and its dashboard; see tests/dashboard/conftest.py."""

    node: Node
    broker: fanlog.Broker
    listener: WebListener
    http: aiohttp.ClientSession
    browser: Browser
    key: str = ""
    data: Flowing | None = None
    _passwords: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.listener.port}"

    def serve_settings(self, file: Path) -> None:
        """Gives the broker a file of settings, as `fanlog serve` does."""
        file.touch()
        settings = load_settings(file, {}, {})
        self.node.core.settings = ServedSettings(self.node, settings, {}, lambda config: None)

    @asynccontextmanager
    async def client(self, **options: Any) -> AsyncIterator[Client]:
        """A connection over the native listener, with the admin's key where there are logins."""
        found = [one for one in self.node.listeners if type(one) is NativeListener]
        native = found[0] if found else self.broker.listen()
        given: dict[str, Any] = ({"key": self.key} if self.key else {}) | options
        async with fanlog.connect(f"fanlog://127.0.0.1:{native.port}", **given) as client:
            yield client

    async def user(self, name: str, role: Role | None = Role.VIEWER, **lists: Any) -> None:
        """A user who can visit: `board.visit("/topics", login=name)`. The password is PASSWORD."""
        assert self.node.security is not None
        kept = await self.node.security.passwords.hash(PASSWORD)
        rules = Rules(role=role, **lists)
        self.node.security.directory.put(UserEntry(name=name, rules=rules, password=kept))

    def make_key(self, name: str, role: Role | None = None, **lists: Any) -> str:
        """A new key, for `board.client(key=...)` or `Authorization: Bearer`."""
        assert self.node.security is not None
        text = make_key()
        parsed = maybe_parse(text)
        assert parsed is not None
        rules = Rules(role=role, **lists)
        entry = KeyEntry(name=name, id=parsed.id, digest=digest_of(parsed.secret), rules=rules)
        self.node.security.directory.put(entry)
        return text

    @asynccontextmanager
    async def visit(
        self,
        path: str = "/",
        *,
        dark: bool = False,
        phone: bool = False,
        login: str = "admin",
        allow: Collection[int] = (),
        allow_lost: bool = False,
        wait: bool = True,
    ) -> AsyncIterator[Page]:
        """A page that has its heading already, unless `wait` is False."""
        # Without a login the first question of a page is answered with 401.
        statuses = {*allow, 401} if self.key and not login else set(allow)
        async with visited(
            self.browser,
            self.url,
            path,
            dark=dark,
            phone=phone,
            allow=statuses,
            allow_lost=allow_lost,
            wait=wait,
            cookie=await self._log_in(login) if self.key and login else "",
        ) as page:
            yield page

    async def _log_in(self, name: str) -> str:
        """As the login page does it; the session's cookie."""
        body = {"key": self.key} if name == "admin" else {"user": name, "password": PASSWORD}
        plain = aiohttp.DummyCookieJar()
        async with (
            aiohttp.ClientSession(self.url, cookie_jar=plain) as http,
            http.post("/v1/login", json=body, headers=SAME_PAGE) as answer,
        ):
            assert answer.status == 200, await answer.text()
            return answer.cookies["fanlog_session"].value


@asynccontextmanager
async def visited(
    browser: Browser,
    url: str,
    path: str = "/",
    *,
    dark: bool = False,
    phone: bool = False,
    allow: Collection[int] = (),
    allow_lost: bool = False,
    wait: bool = True,
    cookie: str = "",
) -> AsyncIterator[Page]:
    """A page of any broker's dashboard; see `Board.visit`."""
    context = await new_context(
        browser,
        viewport=PHONE if phone else DESKTOP,
        color_scheme="dark" if dark else "light",
        has_touch=phone,
        reduced_motion="reduce",
        permissions=["clipboard-read", "clipboard-write"],
    )
    try:
        await context.add_init_script(_REPORT_CSP)
        if cookie:
            await context.add_cookies([{"name": "fanlog_session", "value": cookie, "url": url}])
        page = await context.new_page()
        faults = Faults()
        faults.watch(page, urlsplit(url).netloc, allow, allow_lost=allow_lost)
        await page.goto(f"{url}/#{path}")
        if wait:
            await _until_there(page, faults)
        yield page
        assert not faults, "\n".join(faults)
    finally:
        await context.close()


async def _until_there(page: Page, faults: Faults) -> None:
    try:
        await expect(page.locator("h1").first).to_be_visible()
    except AssertionError as fault:
        fault.add_note(f"The page: {await page.inner_text('body')}\n" + "\n".join(faults))
        raise


async def axe(page: Page, *, without: Collection[str] = (), colours_only: bool = False) -> None:
    """Fails on what axe calls serious or critical, anywhere on the page as it is now. It runs
    beside the page's own scripts, so that the CSP stays as it is. `colours_only`: by the rules that
    look at colours, for a page that it has seen in other colours."""
    if not await page.evaluate("() => typeof window.axe === 'object'"):
        await page.evaluate(AXE.read_text(encoding="utf-8"))
    found = await page.evaluate(_RUN_AXE, colours_only)
    bad = [
        f"{one['impact']} {one['id']}: {one['help']}\n"
        + "\n".join(f"    {node['html'][:200]}\n    {_why(node)}" for node in one["nodes"][:5])
        for one in found
        if one["impact"] in ("serious", "critical") and one["id"] not in without
    ]
    assert not bad, "\n".join(bad)


def _why(node: dict[str, Any]) -> str:
    return str(node.get("failureSummary", "")).replace("\n", " ")[:300]


async def fits(page: Page) -> None:
    """Fails if the page as a whole scrolls sideways."""
    wide = await page.evaluate(
        "() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    )
    assert wide[0] <= wide[1], f"the page is {wide[0]} px wide, the screen {wide[1]} px"


def settings(
    config: Config | None, web: dict[str, Any], *, auth: bool, key_file: Path | None
) -> Config:
    config = config or Config()
    security = config.security
    if auth:
        security = msgspec.structs.replace(security, auth=True, admin_key_file=str(key_file))
    return msgspec.structs.replace(
        config,
        web=msgspec.structs.replace(config.web, port=0, **web),
        listener=msgspec.structs.replace(config.listener, port=0),
        security=security,
    )


@asynccontextmanager
async def open_board(
    folder: Path | None,
    browser: Browser,
    *,
    auth: bool = False,
    config: Config | None = None,
    web: dict[str, Any] | None = None,
) -> AsyncIterator[Board]:
    """A broker on a data folder, with its web listener."""
    nodes: list[Node] = []

    class Broker(fanlog.Broker):
        def _make_node(self) -> Node:
            nodes.append(super()._make_node())
            return nodes[-1]

    key, file = "", None
    if auth:
        assert folder is not None
        key, file = make_key(), folder.with_name("admin_key")
        file.write_text(key)
        file.chmod(0o600)
    async with Broker(folder, settings(config, web or {}, auth=auth, key_file=file)) as broker:
        listener = await broker.listen_web()
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        async with aiohttp.ClientSession(
            f"http://127.0.0.1:{listener.port}",
            headers=headers,
            cookie_jar=aiohttp.DummyCookieJar(),
        ) as http:
            yield Board(nodes[0], broker, listener, http, browser, key)


__all__ = ["AXE", "PATIENCE_MS", "Board", "axe", "fits", "open_board"]
