"""Redis clients log in: AUTH, HELLO AUTH, ACL and what a user may do. Where a real Redis has users
too, the same conversation runs against both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import redis
from redis import asyncio as redis_asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoPermissionError, ResponseError

from fanlog.config import Config, RedisOptions
from fanlog.config_security import SecurityOptions
from fanlog.identity import Allowance, Role, Rules
from fanlog.node import Node
from fanlog.security.directory import KeyEntry, UserEntry
from fanlog.security.keys import digest_of, make_key, maybe_parse
from tests.limits.limited import PATIENCE_SECONDS, HandRuntime, Limited, limited, until
from tests.servers import redis_server


class Safe(Limited):
    """A broker with logins."""

    def __init__(self, node: Node, runtime: HandRuntime) -> None:
        super().__init__(node, runtime)
        self.clients: list[Any] = []

    def key(self, name: str, *, allowance: Allowance | None = None, **rules: Any) -> str:
        """Makes a key, or gives the one of this name other rules and another secret."""
        text = make_key()
        parsed = maybe_parse(text)
        assert parsed is not None
        entry = KeyEntry(
            name=name,
            id=parsed.id,
            digest=digest_of(parsed.secret),
            rules=Rules(**rules),
            allowance=allowance or Allowance(),
        )
        self.directory.put(entry)
        return text

    @property
    def directory(self) -> Any:
        assert self.node.security is not None
        return self.node.security.directory

    def client(self, **options: Any) -> Any:
        """A client with one connection, which does not try again. It is closed at the end."""
        made = redis_asyncio.Redis(
            port=self.redis.port,
            single_connection_client=True,
            retry=Retry(NoBackoff(), 0),
            **options,
        )
        self.clients.append(made)
        return made


@asynccontextmanager
async def safe(password: str = "", **limits: Any) -> AsyncIterator[Safe]:
    config = Config(
        security=SecurityOptions(auth=True), redis=RedisOptions(port=0, password=password)
    )
    async with limited(None, config, **limits) as broker:
        made = Safe(broker.node, broker.runtime)
        made.native, made.redis, made.web = broker.native, broker.redis, broker.web
        try:
            yield made
        finally:
            for client in made.clients:
                await client.aclose()


async def test_nothing_is_answered_before_a_login_but_what_redis_answers() -> None:
    async with safe() as broker:
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.redis.port)
        for line in (b"PING", b"PUBLISH c m", b"SUBSCRIBE c", b"ACL WHOAMI", b"CLIENT LIST"):
            writer.write(line + b"\r\n")
            assert await reader.readline() == b"-NOAUTH Authentication required.\r\n"
        writer.write(b"HELLO 3\r\nRESET\r\nQUIT\r\n")
        assert (await reader.readline()).startswith(b"-NOAUTH HELLO must be called with")
        assert await reader.read() == b"+RESET\r\n+OK\r\n"
        writer.close()


@pytest.mark.parametrize("protocol", [2, 3])
async def test_a_key_is_a_password_with_or_without_its_name(protocol: Any) -> None:
    async with safe() as broker:
        key = broker.key("ingest", role=Role.PRODUCER)
        for options in ({}, {"username": "ingest"}, {"username": "default"}):
            client = broker.client(password=key, protocol=protocol, **options)
            assert await client.acl_whoami() in ("ingest", b"ingest")
            assert await client.publish("orders", "x") == 0
            assert (await client.client_info())["user"] == "ingest"
        for wrong in (key[:-2] + "x", "fl_", make_key(), "nothing"):
            client = broker.client(password=wrong, protocol=protocol)
            with pytest.raises(AuthenticationError, match="invalid username-password pair"):
                await client.ping()
        other = broker.client(username="someone", password=key, protocol=protocol)
        with pytest.raises(AuthenticationError):
            await other.ping()


async def test_a_user_has_a_password_and_the_commands_behind_auth_wait_for_it() -> None:
    async with safe() as broker:
        assert broker.node.security is not None
        kept = await broker.node.security.passwords.hash("open sesame")
        broker.directory.put(UserEntry(name="ann", rules=Rules(role=Role.PRODUCER), password=kept))
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.redis.port)
        writer.write(b"PING\r\nAUTH ann wrong\r\nPING\r\nAUTH ann nothing x y\r\n")
        writer.write(b'AUTH ann "open sesame"\r\nPING\r\nACL WHOAMI\r\n')
        wanted = [
            b"-NOAUTH Authentication required.\r\n",
            b"-WRONGPASS invalid username-password pair or user is disabled.\r\n",
            b"-NOAUTH Authentication required.\r\n",
            b"-ERR syntax error\r\n",
            b"+OK\r\n",
            b"+PONG\r\n",
            b"$3\r\n",
            b"ann\r\n",
        ]
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert [await reader.readline() for _ in wanted] == wanted
        writer.close()


async def test_rules_hold_for_channels_patterns_and_commands_in_redis_words() -> None:
    async with safe() as broker:
        text = broker.key("team", publish=("team.>",), subscribe=("team.>", "news", "!team.x"))
        client = broker.client(password=text)
        assert await client.publish("team.a", "x") == 0
        with pytest.raises(NoPermissionError, match="No permissions to access a channel"):
            await client.publish("news", "x")
        with pytest.raises(NoPermissionError, match=r"run the 'acl\|list' command"):
            await client.acl_list()
        with pytest.raises(NoPermissionError, match="'flushall' command"):
            await client.flushall()
        async with client.pubsub() as pubsub:
            await pubsub.subscribe("team.a", "news")
            await pubsub.psubscribe("team.b.*")
            for refused in ("other", "team.x"):
                await pubsub.subscribe(refused)
            await pubsub.psubscribe("*")
            refusals = 0
            while refusals < 3:
                try:
                    await pubsub.get_message(timeout=PATIENCE_SECONDS)
                except NoPermissionError:
                    refusals += 1


async def test_acl_commands_tell_an_admin_who_there_is() -> None:
    async with safe("secret") as broker:
        admin = broker.client(password=broker.key("root", role=Role.ADMIN))
        broker.key("both", publish=("a.>",), subscribe=("a.>",))
        broker.key("apart", publish=("a.*",), subscribe=(">", "!b"))
        broker.key("seer", role=Role.VIEWER)
        assert await admin.acl_users() == ["default", "apart", "both", "root", "seer"]
        lines = {line.split()[1]: line for line in await admin.acl_list()}
        assert lines["root"] == "user root on ~* &* +@all"
        assert "resetchannels &a.* -@all" in lines["both"]
        assert "(resetchannels &* &!b -@all +subscribe +psubscribe +ssubscribe)" in lines["apart"]
        both = await admin.acl_getuser("both")
        assert both["flags"] == ["on"]
        assert both["enabled"] is True
        assert both["passwords"] == []
        assert both["channels"] == ["&a.*"]
        assert "+publish" in both["commands"]
        apart = await admin.acl_getuser("apart")
        assert len(apart["selectors"]) == 2
        assert await admin.acl_getuser("nobody") is None
        assert "pubsub" in await admin.acl_cat()
        assert "publish" in await admin.acl_cat("pubsub")
        assert len(await admin.acl_genpass()) == 64
        assert await admin.acl_log() == []
        run = admin.acl_dryrun
        assert await run("both", "PUBLISH", "a.b", "x") == b"OK"
        assert await run("both", "PUBLISH", "c", "x") == (
            b"User both has no permissions to access the 'c' channel"
        )
        assert await run("apart", "PSUBSCRIBE", "c.*") == b"OK"
        assert await run("apart", "SUBSCRIBE", "a.b", "b") == (
            b"User apart has no permissions to access the 'b' channel"
        )
        assert await run("seer", "ACL", "LIST") == (
            b"User seer has no permissions to run the 'acl|list' command"
        )
        with pytest.raises(ResponseError, match="User 'nobody' not found"):
            await run("nobody", "PING")
        with pytest.raises(ResponseError, match="fanlog user"):
            await admin.acl_setuser("x", enabled=True)


async def test_the_password_of_redis_is_an_account_of_its_own_and_no_admin() -> None:
    async with safe("secret") as broker:
        for options in ({}, {"username": "default"}):
            client = broker.client(password="secret", **options)
            assert await client.acl_whoami() == "default"
            assert await client.publish("anything", "x") == 0
            with pytest.raises(NoPermissionError):
                await client.acl_list()
            # A change of others' keys leaves it alone.
            broker.key("another", role=Role.VIEWER)
            assert await client.ping()


async def test_without_logins_everybody_is_the_default_user() -> None:
    async with limited() as broker, redis_asyncio.Redis(port=broker.redis.port) as client:
        assert await client.acl_whoami() == "default"
        assert await client.acl_list() == ["user default on nopass sanitize-payload ~* &* +@all"]
        user = await client.acl_getuser("default")
        assert user is not None
        assert user["categories"] == ["+@all"]
        assert await client.acl_dryrun("default", "PUBLISH", "x", "y") == b"OK"


async def test_a_revoked_key_is_cut_off_also_where_it_only_listens() -> None:
    async with safe() as broker:
        text = broker.key("reader", role=Role.CONSUMER)
        client = broker.client(password=text)
        busy = broker.client(password=text)
        await busy.ping()
        async with client.pubsub() as pubsub:
            await pubsub.subscribe("c")
            assert await pubsub.get_message(timeout=PATIENCE_SECONDS) is not None
            broker.directory.remove(broker.directory.keys["reader"])
            await until(lambda: not broker.redis.connection_count())
            # It does not come back with that key.
            with pytest.raises((ResponseError, redis.ConnectionError)):
                await pubsub.get_message(timeout=PATIENCE_SECONDS)
        with pytest.raises((ResponseError, redis.ConnectionError)):
            await busy.ping()


async def test_who_loses_the_permission_for_a_channel_that_it_follows_is_disconnected() -> None:
    async with safe() as broker:
        text = broker.key("reader", subscribe=("a", "b"))
        client = broker.client(password=text)
        async with client.pubsub() as pubsub:
            await pubsub.subscribe("a")
            await pubsub.get_message(timeout=PATIENCE_SECONDS)
            entry = broker.directory.keys["reader"]
            for rules, stays in ((Rules(subscribe=("a",)), True), (Rules(subscribe=("b",)), False)):
                entry = msgspec.structs.replace(entry, rules=rules)
                broker.directory.put(entry)
                if stays:
                    await pubsub.ping()
                    while (await pubsub.get_message(timeout=PATIENCE_SECONDS) or {}).get(
                        "type"
                    ) != "pong":
                        pass
            await until(lambda: not broker.redis.connection_count())


async def test_reset_logs_out() -> None:
    async with safe() as broker:
        client = broker.client(password=broker.key("k", role=Role.PRODUCER))
        assert await client.ping()
        assert await client.execute_command("RESET") in ("RESET", b"RESET")
        with pytest.raises(AuthenticationError):
            await client.execute_command("PING")


async def test_a_key_has_so_many_connections_and_another_login_frees_one() -> None:
    async with safe() as broker:
        text = broker.key("one", role=Role.PRODUCER, allowance=Allowance(connections=1))
        other = broker.key("two", role=Role.PRODUCER)
        first = broker.client(password=text)
        assert await first.ping()
        second = broker.client(password=text)
        with pytest.raises(ResponseError, match="'one' has 1 connections, which is its limit"):
            await second.ping()
        await first.execute_command("AUTH", other)
        assert await second.ping()
        for client in (first, second):
            await client.aclose()
        await until(lambda: not len(broker.node.core.metering.connections))


async def test_wrong_keys_at_speed_lock_the_address_out_and_a_right_key_elsewhere_works() -> None:
    async with safe(wrong_logins_max=3, lockout_seconds=60) as broker:
        right = broker.key("right", role=Role.PRODUCER)
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.redis.port)
        writer.write(b"".join(b"AUTH %b\r\n" % make_key().encode() for _ in range(500)))
        async with asyncio.timeout(PATIENCE_SECONDS):
            lines = [await reader.readline() for _ in range(500)]
        assert sum(line.startswith(b"-WRONGPASS") for line in lines) == 4
        assert b"too many wrong logins from your address. Try again in 1 s" in lines[-1]
        # Not even a right key is looked at from there, and one from elsewhere is let in.
        writer.write(b"AUTH %b\r\n" % right.encode())
        assert b"too many wrong logins" in await reader.readline()
        elsewhere = await asyncio.open_connection(
            "127.0.0.1", broker.redis.port, local_addr=("127.0.0.9", 0)
        )
        elsewhere[1].write(b"AUTH %b\r\n" % right.encode())
        assert await elsewhere[0].readline() == b"+OK\r\n"
        broker.pay(1)
        writer.write(b"AUTH %b\r\n" % right.encode())
        assert await reader.readline() == b"+OK\r\n"
        for one in (writer, elsewhere[1]):
            one.close()


async def test_the_password_of_redis_is_guarded_against_guessing_without_logins_too() -> None:
    config = Config(redis=RedisOptions(port=0, password="secret"))
    async with limited(None, config, wrong_logins_max=2) as broker:
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.redis.port)
        writer.write(b"AUTH a\r\n" * 3 + b"AUTH secret\r\n")
        lines = [await reader.readline() for _ in range(4)]
        assert [line[:6] for line in lines] == [b"-WRONG"] * 3 + [b"-ERR T"]
        writer.close()


# Beside a real Redis

ALICE = "alice"


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with redis_server(tmp_path_factory.mktemp("acl")) as server:
        client = redis.Redis(port=server.port)
        client.execute_command(
            "ACL", "SETUSER", ALICE, "on", ">password", "resetchannels", "&team.*", "+@connection",
            "+@pubsub", "+acl|whoami", "+client", "-client|kill",
        )  # fmt: skip
        client.execute_command("ACL", "SETUSER", "default", ">secret")
        client.close()
        yield server.port


CONVERSATION = (
    b"AUTH\r\n",
    b"AUTH a b c\r\n",
    b"ACL WHOAMI\r\n",
    b"PUBLISH team.a x\r\n",
    b"AUTH nobody pw\r\n",
    b"AUTH alice wrong\r\n",
    b"HELLO 2 AUTH alice wrong\r\n",
    b"AUTH alice password\r\n",
    b"ACL WHOAMI\r\n",
    b"PUBLISH team.a x\r\n",
    b"PUBLISH other x\r\n",
    b"ACL LIST\r\n",
    b"ACL\r\n",
    b"ACL NOTHING\r\n",
    b"FLUSHALL\r\n",
    b"SUBSCRIBE team.a\r\n",
    b"UNSUBSCRIBE team.a\r\n",
    b"SUBSCRIBE other\r\n",
    b"PSUBSCRIBE team.*\r\n",
    b"PUNSUBSCRIBE\r\n",
    b"RESET\r\n",
    b"PING\r\n",
    b"AUTH secret\r\n",
    b"ACL WHOAMI\r\n",
    b"RESET\r\n",
    b"AUTH default secret\r\n",
    b"PING\r\n",
)


# How 7.0, which Debian has, says what 7.2 says otherwise.
SINCE_7_2 = {
    b"this user has no permissions to access one of the channels used as arguments": (
        b"No permissions to access a channel"
    ),
    b"this user has no permissions": b"User alice has no permissions",
}


async def said(port: int) -> list[bytes]:
    """All that a server answers, up to the end of the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.writelines((*CONVERSATION, b"QUIT\r\n"))
    async with asyncio.timeout(PATIENCE_SECONDS):
        answers = await reader.read()
    writer.close()
    for before, now in SINCE_7_2.items():
        answers = answers.replace(before, now)
    return answers.splitlines()


async def test_a_real_redis_answers_alike(real: int) -> None:
    async with safe("secret", wrong_logins_max=100) as broker:
        assert broker.node.security is not None
        kept = await broker.node.security.passwords.hash("password")
        rules = Rules(publish=("team.>",), subscribe=("team.>",))
        broker.directory.put(UserEntry(name=ALICE, rules=rules, password=kept))
        assert await said(broker.redis.port) == await said(real)
