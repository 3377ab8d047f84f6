"""Keys and users over REST: made, changed, rotated and revoked; secrets are shown once."""

from __future__ import annotations

import pytest

from fanlog.identity import Role
from fanlog.security import passwords
from tests.listeners.web.guarded import PAGE, bearer, guarded


@pytest.fixture(autouse=True)
def cheap_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "_LOG2_N", 10)


SHOP = {"name": "shop", "rules": {"role": "producer", "publish": ["orders.>"]}}


async def test_a_key_is_made_changed_rotated_and_revoked() -> None:
    async with guarded() as site:
        admin = site.key("root", Role.ADMIN)
        async with site.http.post("/v1/keys", json=SHOP, headers=bearer(admin)) as answer:
            assert (answer.status, answer.headers["Cache-Control"]) == (201, "no-store")
            made = await answer.json()
        key = made["key"]
        assert key.startswith("fl_" + made["info"]["id"])
        assert (await site.ask("POST", "/v1/keys", key=admin, body=SHOP))[0] == 409
        _, who = await site.ask("GET", "/v1/whoami", key=key)
        assert (who["user"], who["rules"]) == ("shop", SHOP["rules"])
        _, listed = await site.ask("GET", "/v1/keys", key=admin)
        assert [one["name"] for one in listed["keys"]] == ["root", "shop"]
        assert key[-43:] not in str(listed)
        change = {"rules": {"role": "viewer"}, "comment": "was a shop"}
        _, changed = await site.ask("PATCH", "/v1/keys/shop", key=admin, body=change)
        assert (changed["rules"], changed["comment"]) == ({"role": "viewer"}, "was a shop")
        assert (await site.ask("GET", "/v1/whoami", key=key))[1]["role"] == "viewer"
        rotate = ("POST", "/v1/keys/shop/rotate")
        _, with_grace = await site.ask(*rotate, key=admin, body={"grace_seconds": 60})
        for good in (key, with_grace["key"]):
            assert (await site.ask("GET", "/v1/whoami", key=good))[0] == 200
        _, last = await site.ask(*rotate, key=admin, body={})
        for old in (key, with_grace["key"]):
            assert (await site.ask("GET", "/v1/whoami", key=old))[0] == 401
        assert (await site.ask("DELETE", "/v1/keys/shop", key=admin))[0] == 204
        assert (await site.ask("GET", "/v1/whoami", key=last["key"]))[0] == 401
        assert (await site.ask("GET", "/v1/keys/shop", key=admin))[0] == 404


async def test_who_rotates_the_own_key_gets_the_new_one() -> None:
    async with guarded() as site:
        admin = site.key("root", Role.ADMIN)
        status, made = await site.ask("POST", "/v1/keys/root/rotate", key=admin, body={})
        assert status == 200
        assert (await site.ask("GET", "/v1/keys", key=admin))[0] == 401
        assert (await site.ask("GET", "/v1/keys", key=made["key"]))[0] == 200


async def test_a_user_is_made_sets_a_password_and_is_deleted() -> None:
    async with guarded() as site:
        admin = site.key("root", Role.ADMIN)
        ann = {"name": "ann", "password": "first-password", "rules": {"role": "viewer"}}
        status, made = await site.ask("POST", "/v1/users", key=admin, body=ann)
        assert (status, made["has_password"]) == (201, True)
        assert "first-password" not in str(made)
        cookie = await site.log_in(user="ann", password="first-password")
        own = ("POST", "/v1/users/ann/password")
        wrong = {"password": "second-password", "old_password": "wrong-password"}
        assert (await site.ask(*own, body=wrong, Cookie=cookie, **PAGE))[0] == 401
        right = {"password": "second-password", "old_password": "first-password"}
        assert (await site.ask(*own, body=right, Cookie=cookie, **PAGE))[0] == 204
        # The new password ends what the old one opened.
        assert (await site.ask("GET", "/v1/whoami", Cookie=cookie, **PAGE))[0] == 401
        cookie = await site.log_in(user="ann", password="second-password")
        other = ("POST", "/v1/users/root/password")
        assert (await site.ask(*other, body=right, Cookie=cookie, **PAGE))[0] == 403
        off = {"disabled": True}
        assert (await site.ask("PATCH", "/v1/users/ann", key=admin, body=off))[1]["disabled"]
        assert (await site.ask("GET", "/v1/whoami", Cookie=cookie, **PAGE))[0] == 401
        assert (await site.ask("DELETE", "/v1/users/ann", key=admin))[0] == 204
        _, listed = await site.ask("GET", "/v1/users", key=admin)
        assert listed["users"] == []


async def test_only_an_admin_sees_or_changes_accounts() -> None:
    async with guarded() as site:
        site.key("root", Role.ADMIN)
        for name, role in (("p", Role.PRODUCER), ("c", Role.CONSUMER), ("v", Role.VIEWER)):
            key = site.key(name, role)
            for method, path in (
                ("GET", "/v1/keys"),
                ("POST", "/v1/keys"),
                ("GET", f"/v1/keys/{name}"),
                ("PATCH", f"/v1/keys/{name}"),
                ("POST", f"/v1/keys/{name}/rotate"),
                ("DELETE", "/v1/keys/root"),
                ("GET", "/v1/users"),
            ):
                status, _ = await site.ask(method, path, key=key, body={"name": "x"})
                # What is wrong with a body is told first, if it is.
                assert status in (400, 403), (method, path)
        assert set(site.gate.directory.keys) == {"root", "p", "c", "v"}


@pytest.mark.parametrize(
    "body",
    [
        {"name": ""},
        {"name": "a\nb"},
        {"name": "*"},
        {"name": "x", "rules": {"roles": "admin"}},
        {"name": "x", "rules": {"role": "root"}},
        {"name": "x", "rules": {"publish": ["a>"]}},
        {"name": "x", "rules": {"role": "admin", "publish": ["a"]}},
        {"name": "x", "expires_seconds": -1},
        {"name": "x", "key": "chosen"},
    ],
    ids=str,
)
async def test_a_key_that_makes_no_sense_is_not_made(body: dict[str, object]) -> None:
    async with guarded() as site:
        admin = site.key("root", Role.ADMIN)
        assert (await site.ask("POST", "/v1/keys", key=admin, body=body))[0] == 400
        assert set(site.gate.directory.keys) == {"root"}


async def test_without_logins_there_are_no_accounts() -> None:
    async with guarded() as site:
        site.listener.core.accounts = None
        admin = site.key("root", Role.ADMIN)
        status, problem = await site.ask("GET", "/v1/keys", key=admin)
        assert (status, problem["code"]) == (501, "not_supported")
