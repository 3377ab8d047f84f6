"""Logins with a real OpenID provider (npm's `oidc-provider`), through its own pages, and what
happens if somebody lies on the way."""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urljoin, urlsplit

import aiohttp
import pytest
from yarl import URL

from fanlog.config_security import SecurityOptions
from fanlog.errors import ConfigError, LinkError, UnauthenticatedError
from fanlog.security.oidc import Oidc, safe_page
from tests.browser.node import find_node
from tests.listeners.web.guarded import PAGE, Guarded, guarded
from tests.servers import find_program

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / ".venv" / "oidc-provider"
SECRET = "a-secret-of-the-client"
REDIRECT = "http://fanlog.localhost/v1/oidc/callback"


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    """The address of a provider."""
    if not (PACKAGE / "node_modules" / "oidc-provider").exists():
        find_program("oidc-provider", "run scripts/install-test-servers")
    script = Path(__file__).with_name("oidc_server.mjs")
    process = subprocess.Popen(
        [find_node(), str(script), str(PACKAGE), REDIRECT, SECRET],
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


def settings(issuer: str, **changed: Any) -> dict[str, Any]:
    return {
        "oidc_issuer": issuer,
        "oidc_client_id": "public",
        "oidc_redirect_url": REDIRECT,
        "oidc_scopes": "openid profile groups",
        "token_role_claim": "groups",
        "token_roles": "ops=admin staff=viewer",
        **changed,
    }


class Browser:
    """Keeps cookies, fills in forms, and stops where the provider sends it back to the broker."""

    def __init__(self, site: Guarded) -> None:
        self.site = site
        self.cookies = ""
        self.jar = aiohttp.CookieJar(unsafe=True)

    async def begin(self, page: str = "/") -> str:
        """Where the broker sends it."""
        url = f"/v1/oidc/login?{urlencode({'page': page})}"
        async with self.site.http.get(url, allow_redirects=False) as answer:
            assert answer.status == 302, await answer.text()
            cookie = answer.headers["Set-Cookie"]
            for word in ("HttpOnly", "SameSite=Lax", "Path=/v1/oidc"):
                assert word in cookie
            self.cookies = cookie.split(";")[0]
            return answer.headers["Location"]

    async def log_in(self, url: str, user: str) -> dict[str, str]:
        """What the provider sends back, after its pages for login and consent."""
        async with aiohttp.ClientSession(cookie_jar=self.jar) as http:
            form: dict[str, str] | None = None
            for _ in range(20):
                method = "GET" if form is None else "POST"
                target = URL(url, encoded=True)
                async with http.request(method, target, data=form, allow_redirects=False) as answer:
                    text = await answer.text()
                    location = answer.headers.get("Location", "")
                form = None
                if location:
                    url = urljoin(url, location)
                    if url.startswith(REDIRECT):
                        return {k: v[0] for k, v in parse_qs(urlsplit(url).query).items()}
                    continue
                found = re.search(r'<form[^>]*action="([^"]+)"', text)
                assert found, text
                url = urljoin(url, unescape(found[1]))
                prompt = re.search(r'name="prompt" value="(\w+)"', text)
                form = {"prompt": prompt[1] if prompt else "login"}
                if form["prompt"] == "login":
                    form |= {"login": user, "password": "any"}
        raise AssertionError("the provider did not send the browser back")

    async def come_back(self, query: dict[str, str]) -> tuple[int, str, str]:
        """The status, the page, and the session cookie that the broker gives."""
        url = URL(f"{self.site.url}/v1/oidc/callback?{urlencode(query)}", encoded=True)
        async with self.site.http.get(url, headers={"Cookie": self.cookies}) as answer:
            session = answer.cookies.get("fanlog_session")
            value = "" if session is None else f"fanlog_session={session.value}"
            return answer.status, await answer.text(), value


@pytest.mark.parametrize("client", ["public", "secret"])
async def test_people_log_in_with_the_provider(issuer: str, client: str, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(SECRET + "\n")
    more = {"oidc_client_secret_file": str(file)} if client == "secret" else {}
    async with guarded(**settings(issuer, oidc_client_id=client, **more)) as site:
        _, ways = await site.ask("GET", "/v1/login")
        assert ("oidc" in ways["ways"], ways["oidc"]) == (True, "/v1/oidc/login")
        for user, role in (("ann", "admin"), ("bob", "viewer")):
            browser = Browser(site)
            answer = await browser.log_in(await browser.begin("/board?x=1"), user)
            status, page, cookie = await browser.come_back(answer)
            assert status == 200, page
            assert 'url=/board?x=1"' in page
            _, who = await site.ask("GET", "/v1/whoami", Cookie=cookie, **PAGE)
            assert (who["user"], who["role"], who["kind"]) == (user, role, "token")
            # A code is good once.
            assert (await browser.come_back(answer))[0] == 401


async def test_who_has_no_role_is_told_so(issuer: str) -> None:
    async with guarded(**settings(issuer)) as site:
        browser = Browser(site)
        answer = await browser.log_in(await browser.begin(), "eve")
        status, said, cookie = await browser.come_back(answer)
        assert (status, cookie) == (403, "")
        assert "token_roles" in said


async def test_a_login_is_good_in_the_browser_that_began_it_only(issuer: str) -> None:
    async with guarded(**settings(issuer)) as site:
        mine, other = Browser(site), Browser(site)
        answer = await mine.log_in(await mine.begin(), "ann")
        await other.begin()
        # Somebody else's browser is sent there with this code.
        assert (await other.come_back(answer))[0] == 401
        good, mine.cookies = mine.cookies, ""
        assert (await mine.come_back(answer))[0] == 401
        mine.cookies = f"{good}; {other.cookies}"
        assert (await mine.come_back(answer))[0] == 401
        for wrong in (good[:-1] + ("0" if good[-1] != "0" else "1"), "fanlog_oidc=e30.e30", "x=y"):
            mine.cookies = wrong
            assert (await mine.come_back(answer))[0] == 401
        mine.cookies = good
        lies: list[dict[str, str]] = [
            {**answer, "state": "x"},
            {**answer, "code": "x"},
            {**answer, "iss": "https://evil.example"},
            {"state": answer["state"], "error": "access_denied"},
            {"state": answer["state"], "error": "<script>"},
            {"state": answer["state"]},
            {},
        ]
        for lie in lies:
            status, said, cookie = await mine.come_back(lie)
            assert (status, cookie) == (401, ""), lie
            assert "<script>" not in said
        # None of it has used the code up.
        assert (await mine.come_back(answer))[0] == 200


async def test_the_challenge_of_pkce_is_needed(issuer: str) -> None:
    async with guarded(**settings(issuer)) as site:
        browser = Browser(site)
        url = await browser.begin()
        asked = parse_qs(urlsplit(url).query)
        assert asked["code_challenge_method"] == ["S256"]
        assert len(asked["state"][0]) >= 32
        assert asked["nonce"] != asked["state"]
        # A code that was made for another challenge.
        stolen = await browser.log_in(url.replace(asked["code_challenge"][0], "A" * 43), "ann")
        assert (await browser.come_back(stolen))[0] == 401


async def test_an_id_token_of_another_login_is_refused(issuer: str) -> None:
    async with guarded(**settings(issuer)) as site:
        browser = Browser(site)
        url = await browser.begin()
        nonce = parse_qs(urlsplit(url).query)["nonce"][0]
        answer = await browser.log_in(url.replace(nonce, "another-nonce"), "ann")
        status, said, _ = await browser.come_back(answer)
        assert (status, "another login" in said) == (401, True)


async def test_a_login_that_takes_too_long_begins_again(issuer: str) -> None:
    clock = [1_800_000_000_000_000]
    oidc = Oidc(SecurityOptions(**settings(issuer)), lambda: clock[0])
    try:
        start = await oidc.begin(REDIRECT, "/")
        clock[0] += 601_000_000
        state = parse_qs(urlsplit(start.url).query)["state"][0]
        with pytest.raises(UnauthenticatedError, match="too long"):
            await oidc.finish({"state": state, "code": "x"}, start.cookie)
    finally:
        await oidc.close()


async def test_a_provider_that_is_another_or_away_lets_nobody_in(issuer: str) -> None:
    # Its document names the address without the slash.
    wrong = Oidc(SecurityOptions(**settings(issuer + "/")), lambda: 0)
    away = Oidc(SecurityOptions(**settings("http://127.0.0.1:1")), lambda: 0)
    try:
        with pytest.raises(LinkError, match="calls itself"):
            await wrong.begin(REDIRECT, "/")
        with pytest.raises(LinkError, match="did not answer"):
            await away.begin(REDIRECT, "/")
    finally:
        await asyncio.gather(wrong.close(), away.close())


@pytest.mark.parametrize(
    "changed",
    [
        {"oidc_issuer": "http://id.example.com"},
        {"oidc_client_id": ""},
        {"oidc_scopes": "profile"},
        {"oidc_client_secret_file": "/nonexistent"},
    ],
    ids=str,
)
def test_settings_that_are_wrong_are_named(changed: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="oidc"):
        Oidc(SecurityOptions(**settings("https://id.example.com", **changed)), lambda: 0)


@pytest.mark.parametrize(
    "page",
    ["//evil.example", "/\\evil.example", "https://evil.example", "javascript:x", "", "x", "/a\nb"],
)
def test_a_login_leads_to_no_other_host(page: str) -> None:
    assert safe_page(page) == "/"
