"""Keys and users are searched and sorted, for admins alone."""

from __future__ import annotations

import pytest

from fanlog.identity import Role
from tests.listeners.web.conftest import Serving
from tests.listeners.web.guarded import Guarded, guarded


def fill(site: Guarded) -> str:
    admin = site.key("root", Role.ADMIN)
    site.key("Shop", Role.PRODUCER, publish=("orders.>",))
    site.key("report", Role.VIEWER, expires_us=99)
    site.key("bare", subscribe=("orders.*",))
    return admin


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", ["bare", "report", "root", "Shop"]),
        ("?descending=true&limit=2", ["Shop", "root"]),
        ("?offset=1&limit=2", ["report", "root"]),
        ("?search=ORDERS", ["bare", "Shop"]),
        ("?role=none", ["bare"]),
        ("?role=viewer", ["report"]),
        ("?sort=role", ["bare", "root", "Shop", "report"]),
        ("?sort=expires&limit=1", ["report"]),
        ("?search=nothing", []),
    ],
)
async def test_keys_are_searched_and_sorted(query: str, expected: list[str]) -> None:
    async with guarded() as site:
        admin = fill(site)
        status, found = await site.ask("GET", f"/v1/account-list{query}", key=admin)
        assert status == 200, found
        assert [one["name"] for one in found["keys"]] == expected
        assert found["users"] == []
        assert found["keys_count"] == 4


async def test_users_are_listed_without_secrets() -> None:
    async with guarded() as site:
        admin = fill(site)
        await site.user("ann", "correct horse")
        status, found = await site.ask("GET", "/v1/account-list?kind=user", key=admin)
        assert status == 200
        assert [(one["name"], one["has_password"]) for one in found["users"]] == [("ann", True)]
        assert (found["keys"], found["total"], found["users_count"]) == ([], 1, 1)
        assert "digest" not in str(found)
        assert "scrypt" not in str(found)


async def test_only_admins_list_accounts(serving: Serving) -> None:
    async with guarded() as site:
        viewer = site.key("viewer", Role.VIEWER)
        assert (await site.ask("GET", "/v1/account-list", key=viewer))[0] == 403
        assert (await site.ask("GET", "/v1/account-list"))[0] == 401
    async with serving() as site, site.http.get("/v1/account-list") as answer:
        assert (await answer.json())["code"] == "not_supported"


@pytest.mark.parametrize("query", ["?kind=x", "?sort=x", "?role=x", "?limit=0", "?limit=501"])
async def test_wrong_parameters_are_refused(query: str) -> None:
    async with guarded() as site:
        admin = fill(site)
        assert (await site.ask("GET", f"/v1/account-list{query}", key=admin))[0] == 400


async def test_sessions_have_search_and_pages() -> None:
    async with guarded() as site:
        admin = fill(site)
        for name in ("ann", "bob"):
            await site.user(name, "correct horse")
            await site.log_in(user=name, password="correct horse")
        cookie = await site.log_in(user="ann", password="correct horse")
        path = "/v1/sessions"
        _, found = await site.ask("GET", path, key=admin)
        assert ([one["user"] for one in found["sessions"]], found["total"]) == (
            ["ann", "bob", "ann"],
            3,
        )
        _, found = await site.ask("GET", f"{path}?search=BOB&limit=5", key=admin)
        assert ([one["user"] for one in found["sessions"]], found["total"]) == (["bob"], 1)
        _, found = await site.ask("GET", f"{path}?offset=1&limit=1", key=admin)
        assert ([one["user"] for one in found["sessions"]], found["total"]) == (["bob"], 3)
        page = {"Sec_Fetch_Site": "same-origin"}
        _, found = await site.ask("GET", f"{path}?search=bob", Cookie=cookie, **page)
        assert found == {"sessions": [], "total": 0}
