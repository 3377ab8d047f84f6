"""Keys and users, as operators manage them: over the wire, on disk, and from the config file."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import fanlog
from fanlog.config import Config, ListenerOptions
from fanlog.config_security import KeyTable, SecurityOptions, UserTable
from fanlog.errors import (
    AccountExistsError,
    AccountNotFoundError,
    ConfigError,
    DiskFullError,
    ForbiddenError,
    InvalidArgumentError,
    LimitError,
    NotSupportedError,
    UnauthenticatedError,
)
from fanlog.format.accounts import CreateKey, RevokeKey
from fanlog.identity import Allowance, Role, Rules
from fanlog.node import Node
from fanlog.security import passwords
from fanlog.security.keys import digest_of, make_key, maybe_parse

HOST = "127.0.0.1"
PATIENCE_SECONDS = 100.0
PRODUCER = Rules(role=Role.PRODUCER, publish=("orders.>",))


@pytest.fixture(autouse=True)
def cheap_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "_LOG2_N", 10)


class Served:
    def __init__(self, node: Node, admin_key: str) -> None:
        self.node = node
        listener = node.listen()
        self.url = f"fanlog://{listener.host}:{listener.port}"
        self.admin_key = admin_key

    def admin(self) -> Any:
        return fanlog.connect(self.url, key=self.admin_key)

    def client(self, key: str) -> Any:
        return fanlog.connect(self.url, key=key, reconnect=False)


@asynccontextmanager
async def serving(tmp_path: Path, *, memory: bool = False, **options: Any) -> AsyncIterator[Served]:
    file = tmp_path / "admin.key"
    if not file.exists():
        file.write_text(make_key())
        file.chmod(0o600)
    more = {name: options.pop(name) for name in ("keys", "users") if name in options}
    config = Config(
        listener=ListenerOptions(host=HOST, port=0, drain_seconds=0.0),
        security=SecurityOptions(auth=True, admin_key_file=str(file), **options),
        **more,
    )
    node = Node(None if memory else tmp_path / "data", config)
    node.start()
    try:
        yield Served(node, file.read_text())
    finally:
        await node.stop()


@pytest.mark.parametrize("rate", [-1.0, float("nan"), float("inf")])
async def test_a_limit_that_is_no_number_is_refused(tmp_path: Path, rate: float) -> None:
    wrong = Allowance(messages_per_second=rate)
    async with serving(tmp_path, memory=True) as served, served.admin() as admin:
        with pytest.raises(InvalidArgumentError, match="messages_per_second is a number from 0"):
            await admin.accounts.create_key("k", rules=PRODUCER, allowance=wrong)
        await admin.accounts.create_key("k", rules=PRODUCER)
        with pytest.raises(InvalidArgumentError, match="messages_per_second"):
            await admin.accounts.set_key("k", allowance=wrong)


@pytest.mark.parametrize("memory", [True, False])
async def test_an_operator_manages_keys(tmp_path: Path, memory: bool) -> None:
    async with serving(tmp_path, memory=memory) as served, served.admin() as admin:
        made = await admin.accounts.create_key("shop", rules=PRODUCER, comment="the shop")
        assert made.info.rules == PRODUCER
        assert made.key not in repr(made)
        async with served.client(made.key) as shop:
            await shop.publish("orders.eu", b"x")
            with pytest.raises(ForbiddenError):
                await shop.publish("users", b"x")
            with pytest.raises(ForbiddenError):
                await shop.accounts.keys()
            assert (await shop.accounts.may("publish", "orders.us")).allowed
            assert not (await shop.accounts.may("publish", "users")).allowed
            with pytest.raises(ForbiddenError):
                await shop.accounts.may("publish", "users", key="admin")
        with pytest.raises(AccountExistsError):
            await admin.accounts.create_key("shop", rules=PRODUCER)
        with pytest.raises(AccountExistsError):
            await admin.accounts.create_user("shop", "a good password", rules=PRODUCER)
        assert [key.name for key in await admin.accounts.keys()] == ["admin", "shop"]
        allowed = await admin.accounts.may("publish", "orders.>", key="shop")
        denied = await admin.accounts.may("subscribe", "orders.x", key="shop")
        assert (allowed.allowed, denied.allowed) == (True, False)
        assert "'shop' may not read 'orders.x'" in denied.reason
        changed = await admin.accounts.set_key("shop", expires_seconds=3600.0)
        assert changed.expires_us > changed.created_us
        assert changed.comment == "the shop"
        await admin.accounts.revoke_key("shop")
        with pytest.raises(UnauthenticatedError):
            await served.client(made.key)
        for call in (admin.accounts.key, admin.accounts.revoke_key, admin.accounts.rotate_key):
            with pytest.raises(AccountNotFoundError, match="fanlog key list"):
                await call("shop")


async def test_a_rotated_key_keeps_its_old_secret_for_the_grace_period(tmp_path: Path) -> None:
    async with serving(tmp_path, memory=True) as served, served.admin() as admin:
        first = await admin.accounts.create_key("shop", rules=PRODUCER)
        async with served.client(first.key) as open_before:
            second = await admin.accounts.rotate_key("shop", grace_seconds=3600)
            assert second.info.old_until_us
            await open_before.publish("orders.a", b"x")
            async with served.client(first.key) as old, served.client(second.key) as new:
                await old.publish("orders.a", b"x")
                third = await admin.accounts.rotate_key("shop")
                assert not third.info.old_until_us
                for client in (old, new, open_before):
                    async with asyncio.timeout(PATIENCE_SECONDS):
                        with pytest.raises(fanlog.FanlogError):
                            await _publish_until_refused(client)
        async with served.client(third.key) as newest:
            await newest.publish("orders.a", b"x")


async def _publish_until_refused(client: Any) -> None:
    while True:
        await client.publish("orders.a", b"x")


async def test_who_rotates_their_own_key_gets_the_new_one_first(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, served.admin() as admin:
        made = await admin.accounts.create_key("root", rules=Rules(role=Role.ADMIN))
        root = await served.client(made.key)
        again = await root.accounts.rotate_key("root")
        async with asyncio.timeout(PATIENCE_SECONDS):
            with pytest.raises(fanlog.FanlogError):
                await _publish_until_refused(root)
        await root.close(flush=False)
        root = await served.client(again.key)
        await root.accounts.revoke_key("root")
        with pytest.raises(AccountNotFoundError):
            await admin.accounts.key("root")
        await root.close(flush=False)


async def test_an_operator_manages_users(tmp_path: Path) -> None:
    async with serving(tmp_path, memory=True) as served, served.admin() as admin:
        await admin.accounts.create_user("ann", "correct horse", rules=Rules(role=Role.VIEWER))
        ann = await fanlog.connect(served.url, user="ann", password="correct horse")
        with pytest.raises(UnauthenticatedError, match="old password"):
            await ann.accounts.set_password("ann", "another horse", old_password="wrong")
        with pytest.raises(ForbiddenError):
            await ann.accounts.set_password("admin", "another horse")
        await admin.accounts.set_user("ann", disabled=True)
        with pytest.raises(UnauthenticatedError):
            await ann.topics()
        await ann.close(flush=False)
        await admin.accounts.set_user("ann", disabled=False, certificates=["ann.example"])
        async with fanlog.connect(served.url, user="ann", password="correct horse") as again:
            await again.accounts.set_password("ann", "another horse", old_password="correct horse")
        with pytest.raises(UnauthenticatedError):
            await fanlog.connect(served.url, user="ann", password="correct horse")
        async with fanlog.connect(served.url, user="ann", password="another horse"):
            pass
        with pytest.raises(InvalidArgumentError, match="belongs to the user"):
            await admin.accounts.create_user(
                "bob", rules=Rules(role=Role.VIEWER), certificates=["ANN.example"]
            )
        with pytest.raises(InvalidArgumentError, match="8 characters"):
            await admin.accounts.create_user("bob", "short", rules=Rules(role=Role.VIEWER))
        assert [user.name for user in await admin.accounts.users()] == ["ann"]
        await admin.accounts.delete_user("ann")
        with pytest.raises(AccountNotFoundError):
            await admin.accounts.user("ann")


async def test_the_blocking_client_manages_them_too(tmp_path: Path) -> None:
    async with serving(tmp_path, memory=True) as served:

        def work() -> None:
            with fanlog.sync.connect(served.url, key=served.admin_key) as admin:
                made = admin.accounts.create_key("shop", rules=PRODUCER)
                assert admin.accounts.key("shop") == made.info
                assert admin.accounts.set_key("shop", comment="x").comment == "x"
                assert admin.accounts.rotate_key("shop").key != made.key
                admin.accounts.create_user("ann", "correct horse", rules=PRODUCER)
                assert admin.accounts.set_user("ann", comment="y").comment == "y"
                assert admin.accounts.user("ann").has_password
                admin.accounts.set_password("ann", "another horse")
                assert admin.accounts.may("publish", "orders.x", user="ann").allowed
                assert len(admin.accounts.keys()) == 2
                assert len(admin.accounts.users()) == 1
                admin.accounts.revoke_key("shop")
                admin.accounts.delete_user("ann")

        await asyncio.to_thread(work)


@pytest.mark.parametrize("name", ["", " a", "a\n", "a*", ">", "a\u202eb", "x" * 256, "\x00"])
async def test_a_name_that_could_deceive_is_refused(tmp_path: Path, name: str) -> None:
    async with serving(tmp_path, memory=True) as served:
        accounts = served.node.core.accounts
        assert accounts is not None
        with pytest.raises(InvalidArgumentError):
            accounts.create_key(CreateKey(name=name, rules=PRODUCER))


async def test_the_last_admin_stays(tmp_path: Path) -> None:
    async with serving(tmp_path, memory=True) as served, served.admin() as admin:
        with pytest.raises(InvalidArgumentError, match="config file"):
            await admin.accounts.revoke_key("admin")
        accounts = served.node.core.accounts
        assert accounts is not None
        await admin.accounts.create_key("root", rules=Rules(role=Role.ADMIN))
        accounts.replace_file_entries([])
        for change in (
            lambda: accounts.revoke_key("root"),
            lambda: accounts.create_key(CreateKey(name="x" * 300)),
        ):
            with pytest.raises(InvalidArgumentError):
                change()
        # Its own key was of the file, and is gone.
        with pytest.raises(UnauthenticatedError):
            await served.admin()


async def test_there_are_only_so_many(tmp_path: Path) -> None:
    async with serving(tmp_path, memory=True, accounts_max=3) as served:
        accounts = served.node.core.accounts
        assert accounts is not None
        for number in range(2):
            accounts.create_key(CreateKey(name=f"k{number}", rules=PRODUCER))
        with pytest.raises(LimitError, match="accounts_max"):
            accounts.create_key(CreateKey(name="one too many", rules=PRODUCER))


async def test_many_keys_are_listed_in_pages(tmp_path: Path) -> None:
    async with serving(tmp_path, memory=True) as served, served.admin() as admin:
        accounts = served.node.core.accounts
        assert accounts is not None
        for number in range(350):
            accounts.create_key(CreateKey(name=f"k{number:03}", rules=PRODUCER))
        found = [key.name for key in await admin.accounts.keys()]
        assert found == ["admin", *(f"k{number:03}" for number in range(350))]


async def test_keys_and_users_survive_a_restart(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, served.admin() as admin:
        kept = await admin.accounts.create_key("kept", rules=PRODUCER)
        gone = await admin.accounts.create_key("gone", rules=PRODUCER)
        await admin.accounts.create_user("ann", "correct horse", rules=PRODUCER)
        old = await admin.accounts.create_key("rotated", rules=PRODUCER)
        new = await admin.accounts.rotate_key("rotated")
        await admin.accounts.revoke_key("gone")
    async with serving(tmp_path) as served:
        for key in (kept.key, new.key):
            async with served.client(key) as client:
                await client.publish("orders.x", b"x")
        async with fanlog.connect(served.url, user="ann", password="correct horse"):
            pass
        for key in (gone.key, old.key):
            with pytest.raises(UnauthenticatedError):
                await served.client(key)
    # Nothing of a secret is on disk.
    stored = b"".join(
        file.read_bytes() for file in (tmp_path / "data").rglob("*") if file.is_file()
    )
    for key in (kept.key, gone.key, old.key, new.key):
        parsed = maybe_parse(key)
        assert parsed is not None
        assert parsed.secret.encode() not in stored
    assert b"correct horse" not in stored


async def test_a_damaged_ledger_lets_nobody_in_but_the_keys_of_the_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path) as served, served.admin() as admin:
        key = (await admin.accounts.create_key("shop", rules=PRODUCER)).key
        for number in range(20):
            await admin.accounts.set_key("shop", comment=f"change {number}")
        number = served.node.core.catalog.get("_fanlog.accounts").number
    segments = [
        file
        for file in (tmp_path / "data").rglob("*")
        if file.is_file() and b"change 7" in file.read_bytes()
    ]
    assert segments, number
    for file in segments:
        data = bytearray(file.read_bytes())
        data[data.index(b"change 7")] ^= 0x40
        file.write_bytes(data)
    caplog.set_level(logging.CRITICAL)
    for _ in range(2):
        # It starts, stays closed, and does so after the next start, too.
        async with serving(tmp_path) as served, served.admin() as admin:
            with pytest.raises(UnauthenticatedError):
                await served.client(key)
            assert any("accounts" in problem for problem in (await admin.status()).problems)
            assert [one.name for one in await admin.accounts.keys()] == ["admin", "shop"]


async def test_a_revocation_holds_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as served, served.admin() as admin:
        made = await admin.accounts.create_key("shop", rules=PRODUCER)
        ledger = served.node.core.account_ledger._ledger
        append = ledger._append

        def full(*_: Any) -> None:
            raise DiskFullError("The disk is full.")

        monkeypatch.setattr(ledger, "_append", full)
        with pytest.raises(DiskFullError):
            await admin.accounts.create_key("other", rules=PRODUCER)
        assert [key.name for key in await admin.accounts.keys()] == ["admin", "shop"]
        with pytest.raises(DiskFullError, match="cut off"):
            await admin.accounts.revoke_key("shop")
        with pytest.raises(UnauthenticatedError):
            await served.client(made.key)
        monkeypatch.setattr(ledger, "_append", append)
        await admin.accounts.create_key("other", rules=PRODUCER)
    async with serving(tmp_path) as served, served.admin() as admin:
        assert [key.name for key in await admin.accounts.keys()] == ["admin", "other"]


async def test_a_change_is_answered_when_it_is_durable(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, served.admin() as admin:
        await admin.accounts.create_key("first", rules=PRODUCER)
        group = served.node._group
        assert group is not None
        waiting: list[Any] = []
        add = group.add
        group.add = lambda *given: waiting.append(given)  # type: ignore[method-assign]
        asking = asyncio.create_task(admin.accounts.create_key("shop", rules=PRODUCER))
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not waiting:  # noqa: ASYNC110 - it is no event
                await asyncio.sleep(0.001)
        assert not asking.done()
        group.add = add  # type: ignore[method-assign]
        for given in waiting:
            add(*given)
        group.kick()
        assert (await asking).info.name == "shop"


async def test_the_config_file_has_keys_and_users(tmp_path: Path) -> None:
    text = make_key()
    parsed = maybe_parse(text)
    assert parsed is not None
    file = tmp_path / "two.key"
    file.write_text(make_key())
    tables: dict[str, Any] = {
        "keys": {
            "one": KeyTable(hash=f"{parsed.id}:{digest_of(parsed.secret)}", role=Role.PRODUCER),
            "two": KeyTable(key_file=str(file), publish=("orders.>",)),
        },
        "users": {
            "ann": UserTable(
                password_hash=passwords.hash_password("correct horse"), role=Role.ADMIN
            )
        },
    }
    async with serving(tmp_path, memory=True, **tables) as served:
        for key in (text, file.read_text()):
            async with served.client(key) as client:
                await client.publish("orders.x", b"x")
        async with fanlog.connect(served.url, user="ann", password="correct horse") as ann:
            assert [key.source for key in await ann.accounts.keys()] == ["file"] * 3
            with pytest.raises(InvalidArgumentError, match="config file"):
                await ann.accounts.set_password("ann", "another horse")
            with pytest.raises(InvalidArgumentError, match="config file"):
                await ann.accounts.rotate_key("one")


@pytest.mark.parametrize(
    "tables",
    [
        {"keys": {"x": KeyTable(role=Role.ADMIN)}},
        {"keys": {"x": KeyTable(hash="nonsense", role=Role.ADMIN)}},
        {"keys": {"x": KeyTable(key_file="/no/such/file", role=Role.ADMIN)}},
        {"keys": {"a*": KeyTable(hash="abcdefghij:" + "0" * 64)}},
        {"keys": {"x": KeyTable(hash="abcdefghij:" + "0" * 64, publish=("a>",))}},
        {"keys": {"admin": KeyTable(hash="abcdefghij:" + "0" * 64)}},
        {"users": {"x": UserTable(password_hash="plain text")}},
    ],
    ids=range(7),
)
async def test_a_mistake_in_the_config_file_stops_the_start(
    tmp_path: Path, tables: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError) as fault:
        async with serving(tmp_path, memory=True, **tables):
            pass
    assert "plain text" not in str(fault.value)


async def test_the_file_is_read_again(tmp_path: Path) -> None:
    async with serving(tmp_path, memory=True) as served:
        file = tmp_path / "admin.key"
        config = Config(security=SecurityOptions(auth=True, admin_key_file=str(file)))
        file.write_text(make_key())
        served.node.apply(config)
        with pytest.raises(UnauthenticatedError):
            await served.admin()
        async with fanlog.connect(served.url, key=file.read_text()) as admin:
            file.write_text("nonsense")
            with pytest.raises(ConfigError):
                served.node.apply(config)
            assert await admin.accounts.keys()


async def test_a_broker_without_logins_has_no_keys() -> None:
    async with fanlog.Broker() as broker:
        with pytest.raises(NotSupportedError, match=r"security\.auth"):
            await broker.accounts.keys()


async def test_the_program_of_the_broker_manages_keys(tmp_path: Path) -> None:
    config = Config(security=SecurityOptions(auth=True))
    async with fanlog.Broker(config=config) as broker:
        made = await broker.accounts.create_key("first", rules=Rules(role=Role.ADMIN))
        assert made.key.startswith("fl_")


def test_requests_do_not_show_secrets() -> None:
    assert "x" in repr(RevokeKey(name="x"))
