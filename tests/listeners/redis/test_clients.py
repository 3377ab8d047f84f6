"""Clients as people use them, against a real Redis and against Fanlog: redis-py, blocking and on
asyncio, in RESP2 and RESP3, and redis-cli."""

from __future__ import annotations

import asyncio
import subprocess
import time
from typing import Any

import pytest
import redis
import redis.asyncio

from tests.servers import find_program

WAIT_S = 100.0


@pytest.fixture(params=[2, 3], ids=["RESP2", "RESP3"])
def protocol(request: pytest.FixtureRequest) -> int:
    return request.param


def next_message(follower: Any) -> dict[str, Any]:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        message = follower.get_message(timeout=0.5)
        if message is not None:
            return message
    raise AssertionError("no message came")


def test_redis_py_publishes_and_subscribes(port: int, protocol: int) -> None:
    with redis.Redis(port=port, protocol=protocol) as client, client.pubsub() as follower:
        follower.subscribe("news")
        assert next_message(follower)["type"] == "subscribe"
        assert client.publish("news", "hello") == 1
        message = next_message(follower)
        assert (message["type"], message["channel"], message["data"]) == (
            "message",
            b"news",
            b"hello",
        )
        follower.unsubscribe("news")
        assert next_message(follower)["type"] == "unsubscribe"
        assert client.publish("news", "hello") == 0


def test_redis_py_follows_patterns_with_handlers(port: int, protocol: int) -> None:
    seen: list[tuple[bytes, bytes]] = []
    with redis.Redis(port=port, protocol=protocol) as client, client.pubsub() as follower:
        follower.psubscribe(**{"room.*": lambda m: seen.append((m["channel"], m["data"]))})
        assert next_message(follower)["type"] == "psubscribe"
        for i in range(5):
            assert client.publish(f"room.{i}", str(i)) == 1
        deadline = time.monotonic() + WAIT_S
        while len(seen) < 5 and time.monotonic() < deadline:
            follower.get_message(timeout=0.5)
    assert seen == [(b"room.%d" % i, b"%d" % i) for i in range(5)]


def test_redis_py_sends_pipelines_and_transactions(port: int, protocol: int) -> None:
    with redis.Redis(port=port, protocol=protocol) as client, client.pubsub() as follower:
        follower.subscribe("p1", "p2")
        next_message(follower)
        next_message(follower)
        for transaction in (False, True):
            with client.pipeline(transaction=transaction) as pipeline:
                for i in range(10):
                    pipeline.publish(f"p{i % 2 + 1}", f"{i}")
                assert pipeline.execute() == [1] * 10
            got = [next_message(follower) for _ in range(10)]
            assert [m["data"] for m in got] == [b"%d" % i for i in range(10)]


def test_redis_py_asks_what_there_is(port: int, protocol: int) -> None:
    with (
        redis.Redis(port=port, protocol=protocol, client_name="me") as client,
        client.pubsub() as follower,
    ):
        follower.subscribe("asked")
        follower.psubscribe("ask*")
        next_message(follower)
        next_message(follower)
        assert client.ping()
        assert client.client_getname() in ("me", b"me")
        assert client.pubsub_channels("aske?") == [b"asked"]
        assert dict(client.pubsub_numsub("asked", "other")) == {b"asked": 1, b"other": 0}
        assert client.pubsub_numpat() == 1
        assert client.info("server")["redis_mode"] == "standalone"
        assert client.info()["loading"] in (0, None)
        assert client.config_get("save") == {"save": ""}
        assert len(client.time()) == 2
        assert client.echo("x") in ("x", b"x")
        assert any(c["name"] == "me" for c in client.client_list())
        with pytest.raises(redis.ResponseError, match="unknown command"):
            client.execute_command("NOSUCH", "x")


def test_redis_py_follows_in_a_thread(port: int, protocol: int) -> None:
    seen: list[bytes] = []
    with redis.Redis(port=port, protocol=protocol) as client, client.pubsub() as follower:
        follower.subscribe(threaded=lambda message: seen.append(message["data"]))
        worker = follower.run_in_thread(sleep_time=0.01)
        deadline = time.monotonic() + WAIT_S
        while client.publish("threaded", "x") == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        while not seen and time.monotonic() < deadline:
            time.sleep(0.01)
        worker.stop()
        worker.join(WAIT_S)
    assert seen[0] == b"x"


async def test_redis_py_on_asyncio_publishes_and_subscribes(port: int, protocol: int) -> None:
    client = redis.asyncio.Redis(port=port, protocol=protocol)
    follower = client.pubsub()
    await follower.subscribe("anews")
    await follower.psubscribe("an*")
    got: list[tuple[str, bytes]] = []

    async def listen() -> None:
        async for message in follower.listen():
            if message["type"] in ("message", "pmessage"):
                got.append((message["type"], message["data"]))
            if len(got) == 200:
                return

    listening = asyncio.create_task(listen())
    while dict(await client.pubsub_numsub("anews"))[b"anews"] != 1 or not (  # noqa: ASYNC110
        await client.pubsub_numpat()
    ):
        await asyncio.sleep(0.01)
    for i in range(100):
        assert await client.publish("anews", str(i)) == 2
    await asyncio.wait_for(listening, WAIT_S)
    assert got == [(kind, b"%d" % i) for i in range(100) for kind in ("message", "pmessage")]
    await follower.aclose()
    await client.aclose()


async def test_redis_py_follows_shard_channels(port: int) -> None:
    client = redis.asyncio.Redis(port=port)
    assert await client.execute_command("SPUBLISH", "shard", "x") == 0
    assert await client.execute_command("PUBSUB", "SHARDNUMSUB", "shard") == [b"shard", 0]
    await client.aclose()


def cli(port: int, *words: str, stdin: str = "") -> str:
    program = find_program("redis-cli", "Debian's package redis-tools has it")
    ended = subprocess.run(
        [program, "-p", str(port), *words],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return ended.stdout


@pytest.mark.plain
def test_redis_cli_says_what_it_says_to_redis(redis_port: int, fanlog_port: int) -> None:
    script = (
        "PING\nPUBLISH a b\nPUBSUB CHANNELS\nECHO 'a b'\nNOSUCH x\nSELECT 3\nMULTI\nPING\nEXEC\n"
    )
    for flags in ((), ("-3",), ("--no-raw",)):
        said = cli(fanlog_port, *flags, stdin=script)
        assert said == cli(redis_port, *flags, stdin=script)
        assert "PONG" in said


@pytest.mark.plain
def test_redis_cli_subscribes(port: int) -> None:
    program = find_program("redis-cli", "Debian's package redis-tools has it")
    with subprocess.Popen(
        [program, "-p", str(port), "SUBSCRIBE", "cli"], stdout=subprocess.PIPE, text=True
    ) as reader:
        assert reader.stdout is not None
        assert [reader.stdout.readline().strip() for _ in range(3)] == ["subscribe", "cli", "1"]
        assert cli(port, "PUBLISH", "cli", "hello").strip() == "1"
        assert [reader.stdout.readline().strip() for _ in range(3)] == ["message", "cli", "hello"]
        reader.terminate()


@pytest.mark.plain
def test_redis_benchmark_publishes(port: int) -> None:
    program = find_program("redis-benchmark", "Debian's package redis-tools has it")
    ended = subprocess.run(
        [program, "-p", str(port), "-n", "2000", "-P", "16", "-q", "PUBLISH", "bench", "x"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "requests per second" in ended.stdout
    assert "rror" not in ended.stdout + ended.stderr
