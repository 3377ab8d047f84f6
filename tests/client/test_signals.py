"""Signals reach every program that hears their channel, and cost nobody anything who does not."""

from __future__ import annotations

import asyncio

import fanlog
from fanlog.client.signals import Signals
from tests.listeners.peers import PATIENCE_SECONDS, serving


async def until_len(heard: list[tuple[str, bytes]], count: int) -> None:
    async def look() -> None:
        while len(heard) < count:  # noqa: ASYNC110 - a signal has no event
            await asyncio.sleep(0.005)

    await asyncio.wait_for(look(), PATIENCE_SECONDS)


async def test_a_signal_is_heard_by_all_who_hear_its_channel() -> None:
    async with serving() as served, served.client() as one, served.client() as other:
        heard: list[tuple[str, bytes]] = []
        all_signals = [Signals(one), Signals(other)]
        for name, signals in zip("ab", all_signals, strict=True):
            signals.on("x", lambda data, name=name: heard.append((name, data)))
            await signals.open()
        all_signals[0].send("nobody", b"0")
        for n in range(1000):
            all_signals[n % 2].send("x", b"%d" % n)
        await until_len(heard, 2000)
        for name in "ab":
            got = [int(data) for who, data in heard if who == name]
            assert sorted(got) == list(range(1000))
            assert [n for n in got if n % 2] == list(range(1, 1000, 2))
        for signals in all_signals:
            await signals.close()


async def test_signals_that_can_not_be_sent_are_dropped_and_counted() -> None:
    async with fanlog.Broker() as broker:
        signals = Signals(broker)
        for n in range(5000):
            signals.send("x", b"%d" % n)
        assert signals.lost == 5000 - 4096
        await signals.close()


async def test_who_hears_again_after_a_lost_connection_hears_what_comes_then() -> None:
    async with serving() as served, served.client() as client:
        heard: list[tuple[str, bytes]] = []
        signals = Signals(client)
        signals.on("x", lambda data: heard.append(("", data)))
        await signals.open()
        signals.send("x", b"1")
        await until_len(heard, 1)
        for connection in list(served.listener._connections):
            connection.close()
        await served.until(lambda: client.reconnects == 1 and client.state == "connected")
        signals.send("x", b"2")
        await until_len(heard, 2)
        assert [data for _, data in heard] == [b"1", b"2"]
        await signals.close()


async def test_a_hearer_that_fails_keeps_nobody_from_hearing() -> None:
    async with fanlog.Broker() as broker:
        heard: list[tuple[str, bytes]] = []
        signals = Signals(broker)

        def failing(data: bytes) -> None:
            raise ValueError("no")

        signals.on("x", failing)
        signals.on("x", lambda data: heard.append(("", data)))
        await signals.open()
        signals.send("x", b"1")
        signals.send("x", b"2")
        await until_len(heard, 2)
        await signals.close()
