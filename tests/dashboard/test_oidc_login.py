"""Single sign-on in a browser, with a real OpenID provider and its own pages."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from playwright.async_api import expect

import fanlog
from fanlog.config import Config
from tests.browser.conftest import Chromium, new_context
from tests.browser.node import find_node
from tests.security import test_oidc
from tests.servers import find_program


@contextmanager
def provider(redirect: str) -> Iterator[str]:
    """The address of a provider that sends browsers back to `redirect`."""
    package = test_oidc.PACKAGE
    if not (package / "node_modules" / "oidc-provider").exists():
        find_program("oidc-provider", "run scripts/install-test-servers")
    script = Path(test_oidc.__file__).with_name("oidc_server.mjs")
    process = subprocess.Popen(
        [find_node(), str(script), str(package), redirect, test_oidc.SECRET],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    try:
        address = process.stdout.readline().strip()
        assert address, "the provider did not start"
        yield address
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return sock.getsockname()[1]


async def test_people_log_in_and_get_the_page_that_they_asked_for(chromium: Chromium) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with provider(f"{url}/v1/oidc/callback") as issuer:
        options = test_oidc.settings(issuer, oidc_redirect_url="")
        config = Config()
        config = msgspec.structs.replace(
            config,
            web=msgspec.structs.replace(config.web, port=port),
            security=msgspec.structs.replace(config.security, auth=True, **options),
        )
        async with fanlog.Broker(None, config) as broker, chromium.driven() as browser:
            await broker.listen_web()
            page = await (await new_context(browser)).new_page()
            await page.goto(f"{url}/#/security?tab=roles")
            await page.get_by_role("link", name="Continue with single sign-on").click()
            # The provider's pages.
            await page.locator("input[name=login]").fill("bob")
            await page.locator("input[name=password]").fill("any")
            await page.locator("button[type=submit]").click()
            await page.get_by_role("button", name="Continue").click()
            # Back, as whom the provider says.
            await expect(page.get_by_role("heading", name="How rules work")).to_be_visible()
            await expect(page.get_by_role("link", name="bob")).to_be_visible()
            assert page.url == f"{url}/#/security?tab=roles"
            await page.goto(f"{url}/#/sessions")
            await expect(page.get_by_role("row", name="this browser")).to_contain_text("bob")
