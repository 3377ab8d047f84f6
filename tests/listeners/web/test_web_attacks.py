"""Attacks on logins over HTTP. Tokens have theirs in tests/security/test_tokens.py."""

from __future__ import annotations

import asyncio
import logging

import pytest
from aiohttp import WSServerHandshakeError

from fanlog.identity import Identity, Role
from tests.listeners.web.guarded import PAGE, Guarded, bearer, guarded

EVIL = "https://evil.example"


async def create(site: Guarded, cookie: str, **headers: str) -> int:
    status, _ = await site.ask(
        "POST", "/v1/topics", body={"name": "made"}, Cookie=cookie, **headers
    )
    return status


@pytest.mark.parametrize("origins", ["", "*", "https://friend.example"])
async def test_a_page_of_others_can_do_nothing_with_the_cookie(origins: str) -> None:
    async with guarded(web={"origins": origins}) as site:
        cookie = await site.log_in(key=site.key("root", Role.ADMIN))
        attempts: list[dict[str, str]] = [
            {"Origin": EVIL},
            {"Origin": "null"},
            {"Origin": ""},
            {"Origin": f"http://127.0.0.1:{site.port + 1}"},
            {"Origin": f"http://127.0.0.1.evil.example:{site.port}"},
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"},
            {"Sec-Fetch-Site": "none"},
            {"Origin": EVIL, "Sec-Fetch-Site": "same-origin"},
            # A program that uses the cookie says nothing of a page.
            {},
        ]
        for headers in attempts:
            assert await create(site, cookie, **headers) == 403, headers
        # Reading by a link is refused too: a page could measure what comes.
        status, _ = await site.ask("GET", "/v1/topics", Cookie=cookie, Sec_Fetch_Site="cross-site")
        assert status == 403
        _, listed = await site.ask("GET", "/v1/topics", Cookie=cookie, **PAGE)
        assert listed["topics"] == []
        assert await create(site, cookie, Origin=site.url) == 201


async def test_a_form_of_others_logs_nobody_in_or_out() -> None:
    async with guarded(web={"origins": "*"}) as site:
        key = site.key("mallory", Role.ADMIN)
        cookie = await site.log_in(key=site.key("ann", Role.VIEWER))
        for headers in ({"Origin": EVIL}, {"Sec-Fetch-Site": "cross-site"}):
            sent = {**headers, "Content-Type": "text/plain"}
            body = f'{{"key": "{key}"}}'
            async with site.http.post("/v1/login", data=body, headers=sent) as answer:
                assert answer.status == 403
                assert "Set-Cookie" not in answer.headers
            status, _ = await site.ask("POST", "/v1/logout", Cookie=cookie, **headers)
            assert status == 403
        assert (await site.ask("GET", "/v1/whoami", Cookie=cookie, **PAGE))[0] == 200


@pytest.mark.parametrize("origins", ["", "*"])
@pytest.mark.parametrize("path", ["/v1/ws", "/v1/stream?topic=t", "/v1/groups/g/stream?topic=t"])
async def test_a_websocket_of_a_page_of_others_has_no_use_of_the_cookie(
    origins: str, path: str
) -> None:
    async with guarded(web={"origins": origins}) as site:
        await site.broker.create_topic("t")
        cookie = await site.log_in(key=site.key("ann", Role.CONSUMER))
        for headers in ({"Origin": EVIL}, {"Origin": "null"}, {}):
            with pytest.raises(WSServerHandshakeError) as refused:
                await site.http.ws_connect(path, headers={"Cookie": cookie, **headers})
            assert refused.value.status == 403
        good = {"Cookie": cookie, "Origin": site.url}
        async with site.http.ws_connect(path, headers=good) as socket:
            assert (await socket.receive_json())["user"] == "ann"


async def test_a_session_can_not_be_prepared_for_somebody() -> None:
    async with guarded() as site:
        key = site.key("ann", Role.VIEWER)
        attackers = await site.log_in(key=site.key("mallory", Role.VIEWER))
        for planted in (attackers, "fanlog_session=chosen-by-mallory"):
            headers = {**PAGE, "Cookie": planted}
            async with site.http.post("/v1/login", json={"key": key}, headers=headers) as answer:
                new = "fanlog_session=" + answer.cookies["fanlog_session"].value
            assert new != planted
            assert (await site.ask("GET", "/v1/whoami", Cookie=planted, **PAGE))[0] == 401
            _, who = await site.ask("GET", "/v1/whoami", Cookie=new, **PAGE)
            assert who["user"] == "ann"


async def test_two_session_cookies_are_one_too_many() -> None:
    async with guarded() as site:
        mine = await site.log_in(key=site.key("ann", Role.VIEWER))
        other = await site.log_in(key=site.key("mallory", Role.VIEWER))
        for cookies in (f"{mine}; {other}", f"{other}; a=b; {mine}"):
            assert (await site.ask("GET", "/v1/whoami", Cookie=cookies, **PAGE))[0] == 401


async def test_a_cookie_has_no_secret_that_the_broker_keeps() -> None:
    async with guarded() as site:
        cookie = await site.log_in(key=site.key("ann", Role.VIEWER))
        secret = cookie.partition("=")[2]
        assert len(secret) == 43
        (session,) = site.listener.entrance.sessions.all()
        kept = repr([getattr(session, name) for name in session.__struct_fields__])
        assert secret not in kept
        assert session.id not in secret


async def test_a_ticket_is_good_once_for_one_use_and_not_for_long() -> None:
    async with guarded() as site:
        await site.broker.create_topic("t")
        key = site.key("ann", Role.VIEWER)

        async def ticket(use: str) -> str:
            _, got = await site.ask("POST", "/v1/tickets", key=key, body={"use": use})
            return got["ticket"]

        # Ten at the same moment: one gets in.
        one = await ticket("events")
        answers = await asyncio.gather(
            *(site.http.get(f"/v1/stream?topic=t&ticket={one}") for _ in range(10))
        )
        assert sorted(answer.status for answer in answers) == [200] + [401] * 9
        for answer in answers:
            answer.close()
        # For something else, it is used up.
        wrong = await ticket("events")
        with pytest.raises(WSServerHandshakeError):
            await site.http.ws_connect(f"/v1/ws?ticket={wrong}")
        assert (await site.ask("GET", f"/v1/stream?topic=t&ticket={wrong}"))[0] == 401
        # Not for what is no stream.
        status, _ = await site.ask("GET", f"/v1/whoami?ticket={await ticket('events')}")
        assert status == 401
        # Not after its owner is gone.
        late = await ticket("events")
        site.revoke("ann")
        assert (await site.ask("GET", f"/v1/stream?topic=t&ticket={late}"))[0] == 401
        for nonsense in ("x", "flt_", "%00", "a" * 199):
            assert (await site.ask("GET", f"/v1/stream?topic=t&ticket={nonsense}"))[0] == 401


async def test_a_ticket_expires() -> None:
    async with guarded(ticket_seconds=0.001) as site:
        key = site.key("ann", Role.VIEWER)
        _, got = await site.ask("POST", "/v1/tickets", key=key, body={})
        await asyncio.sleep(0.01)
        assert (await site.ask("GET", f"/v1/stream?topic=t&ticket={got['ticket']}"))[0] == 401


async def test_tickets_that_nobody_uses_are_not_hoarded() -> None:
    async with guarded(ticket_seconds=600) as site:
        key = site.key("ann", Role.VIEWER)
        tickets = site.listener.entrance.tickets
        who = await site.listener.entrance.login(key, Identity("", "1.2.3.4:5", "web"))
        for _ in range(200):
            tickets.issue(who, "events")
        async with site.http.post("/v1/tickets", json={}, headers=bearer(key)) as answer:
            assert answer.status == 429
            assert int(answer.headers["Retry-After"]) > 0


async def raw(site: Guarded, request: bytes) -> bytes:
    """What comes back for bytes that no HTTP library would send."""
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
    writer.write(request)
    answer = await reader.read(65536)
    writer.close()
    return answer


async def test_no_header_can_be_put_into_answers_or_logs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with guarded() as site:
        admin = site.key("root", Role.ADMIN)
        for user in ("a%0d%0aSet-Cookie:%20x=y", "a%00", "a%1b[31m", "%E2%80%A8", "a" * 201):
            async with site.http.get(
                "/v1/whoami", headers={**bearer(admin), "Fanlog-User": user}
            ) as answer:
                assert answer.status == 400, user
                assert "Set-Cookie" not in answer.headers
        secret = "fl_abcdefghij_" + "s" * 43
        said = await raw(
            site,
            b"GET /v1/whoami HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
            b"Authorization: Bearer " + secret.encode() + b"\x0bX: y\r\n\r\n",
        )
        assert b" 400 " in said
        assert b"\nX: y" not in said
        assert secret not in caplog.text
        assert secret.encode() not in said


@pytest.mark.parametrize(
    "shown",
    [
        "",
        "Bearer",
        "Bearer ",
        "Basic YW5uOnJpZ2h0",
        "Bearer " + "x" * 20_000,
        "bearer null",
        "Digest x",
        "Bearer a.b.c",
        "Bearer é",
    ],
    ids=lambda text: text[:12],
)
async def test_a_wrong_header_is_not_made_good_by_a_cookie(shown: str) -> None:
    async with guarded() as site:
        cookie = await site.log_in(key=site.key("ann", Role.VIEWER))
        status, _ = await site.ask("GET", "/v1/whoami", Cookie=cookie, Authorization=shown, **PAGE)
        assert status == 401


async def test_two_authorizations_are_refused() -> None:
    async with guarded() as site:
        key = site.key("ann", Role.VIEWER).encode()
        line = b"Authorization: Bearer " + key + b"\r\n"
        head = b"GET /v1/whoami HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        assert (await raw(site, head + line + b"\r\n")).startswith(b"HTTP/1.1 200")
        assert (await raw(site, head + line + line + b"\r\n")).startswith(b"HTTP/1.1 40")


async def test_a_secret_in_an_address_is_refused() -> None:
    async with guarded() as site:
        key = site.key("ann", Role.VIEWER)
        for name in ("token", "key", "access_token"):
            status, said = await site.ask("GET", f"/v1/stream?topic=t&{name}={key}")
            assert status == 401
            assert key not in str(said)


async def test_a_login_that_was_noted_is_that_of_its_connection_only() -> None:
    async with guarded() as site:
        ann, bob = site.key("ann", Role.VIEWER), site.key("bob", Role.VIEWER)
        for key, name in ((ann, "ann"), (bob, "bob"), (ann, "ann")):
            _, who = await site.ask("GET", "/v1/whoami", key=key)
            assert who["user"] == name
        assert (await site.ask("GET", "/v1/whoami"))[0] == 401


async def test_wrong_sessions_at_speed_leave_nothing_behind() -> None:
    async with guarded() as site:
        for number in range(200):
            cookie = f"fanlog_session={'x' * 40}{number:03}"
            assert (await site.ask("GET", "/v1/whoami", Cookie=cookie, **PAGE))[0] == 401
        assert site.listener.entrance.sessions.all() == []
        assert not site.listener.entrance._asking


async def test_answers_say_nothing_of_versions_and_are_no_pages() -> None:
    async with guarded() as site:
        key = site.key("ann", Role.VIEWER)
        for path in ("/v1/whoami", "/v1/nothing", "/v1/login", "/v1/topics/x/messages"):
            async with site.http.get(path, headers=bearer(key)) as answer:
                assert answer.headers["Server"] == "fanlog"
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert b"aiohttp" not in await raw(site, b"GET / HTTP/1.1\r\nbad header\r\n\r\n")
