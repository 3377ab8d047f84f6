"""What somebody who has not logged in can make the broker hold, or write: little."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest

from fanlog.config_limits import LimitOptions
from fanlog.errors import UnauthenticatedError
from fanlog.identity import Account, Identity, Role
from fanlog.listeners.web.oidc_routes import OIDC_COOKIE
from tests.listeners.peers import PATIENCE_SECONDS
from tests.listeners.web.guarded import PAGE, guarded

LARGE = 200_000
COOKIE = f"{OIDC_COOKIE}=x"


async def test_a_stranger_sends_no_large_login() -> None:
    async with guarded() as site:
        body = {"user": "ann", "password": "x" * LARGE}
        assert (await site.ask("POST", "/v1/login", body=body))[0] == 413

        async def without_end() -> Any:
            for _ in range(LARGE // 1000):
                yield b" " * 1000

        # It does not say how much comes.
        async with site.http.post("/v1/login", data=without_end(), headers=PAGE) as answer:
            assert answer.status == 413
        # Who has logged in may send more.
        key = site.key("shop", Role.PRODUCER)
        body = {"messages": [{"text": "x" * LARGE}]}
        assert (await site.ask("POST", "/v1/topics/orders/messages", key=key, body=body))[0] < 300


async def test_a_stranger_sends_no_large_message_over_a_websocket() -> None:
    async with guarded() as site:
        key = site.key("shop", Role.PRODUCER)
        async with site.http.ws_connect("/v1/ws") as stranger:
            await stranger.send_str(" " * LARGE)
            assert await _closed(stranger) == aiohttp.WSCloseCode.MESSAGE_TOO_BIG
        async with site.http.ws_connect("/v1/ws") as known:
            await known.send_json({"op": "token", "id": 1, "token": key})
            await _answer(known, 1)
            message = {"op": "publish", "id": 2, "topic": "orders", "text": "x" * LARGE}
            await known.send_json(message)
            assert "error" not in await _answer(known, 2)


async def _closed(ws: aiohttp.ClientWebSocketResponse) -> int | None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not ws.closed:
            await ws.receive()
    return ws.close_code


async def _answer(ws: aiohttp.ClientWebSocketResponse, id: int) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            said = await ws.receive_json()
            if said.get("id") == id:
                return said


async def test_a_stranger_who_logs_out_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with guarded() as site:
        cookie = await site.log_in(key=site.key("ann", Role.VIEWER))
        noted: list[tuple[str, str]] = []

        def note(self: object, who: Identity, action: str, *rest: str) -> None:
            noted.append((who.user, action))

        monkeypatch.setattr(type(site.node.core.audit), "note", note)
        for shown in ({}, {"Cookie": "fanlog_session=x"}) * 5:
            assert (await site.ask("POST", "/v1/logout", **PAGE, **shown))[0] == 204
        assert noted == []
        assert (await site.ask("POST", "/v1/logout", Cookie=cookie, **PAGE))[0] == 204
        assert noted == [("ann", "logout")]


async def test_what_did_not_happen_is_no_change_in_the_audit_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each change is a record of its own, so that anybody could fill the disk with them."""
    async with guarded() as site:
        results: list[str] = []

        def note(self: object, who: Identity, action: str, name: str, result: str, *_: str) -> None:
            results.append(result)

        key = site.key("ann", Role.OBSERVER)
        assert (await site.ask("GET", "/v1/whoami", key=key))[0] == 200
        monkeypatch.setattr(type(site.node.core.audit), "note", note)
        assert (await site.ask("DELETE", "/v1/sessions/nobodys", key=key))[0] == 404
        assert "ok" not in results


async def test_a_stranger_does_not_send_codes_to_a_provider_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Provider:
        asked = 0

        async def finish(self, query: object, cookie: str) -> tuple[Account, str]:
            self.asked += 1
            raise UnauthenticatedError("The provider did not confirm the login.")

        async def close(self) -> None: ...

    async with guarded(limits=LimitOptions(wrong_logins_max=2)) as site:
        provider = Provider()
        monkeypatch.setattr(site.listener.entrance, "oidc", provider)
        said = [
            (await site.ask("GET", "/v1/oidc/callback?state=s&code=c", Cookie=COOKIE))[0]
            for _ in range(6)
        ]
        assert said[:3] == [401] * 3
        assert 429 in said[3:]
        assert provider.asked == said.count(401)
