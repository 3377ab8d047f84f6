"""REGISTER_PRODUCER as a peer sends it, and what a connection means for a name."""

from __future__ import annotations

from pathlib import Path

import pytest

from fanlog.format.batch import encode_batch
from fanlog.format.frames import FrameKind
from fanlog.format.messages import (
    BeginTransaction,
    CommitTransaction,
    ProducerRegistered,
    Refused,
    RegisterProducer,
    TransactionBegun,
)
from tests.listeners.peers import Peer, serving
from tests.listeners.test_requests import expect_error


async def register(peer: Peer, wanted: RegisterProducer) -> ProducerRegistered:
    return (await peer.ask(FrameKind.REGISTER_PRODUCER, wanted)).read(ProducerRegistered)


async def test_each_connection_that_registers_a_name_gets_its_next_epoch(data: Path) -> None:
    async with serving(data) as served:
        one, two = await served.greeted(), await served.greeted()
        first = await register(one, RegisterProducer("billing"))
        second = await register(two, RegisterProducer("billing"))
        assert second == ProducerRegistered(first.id, first.epoch + 1)
        await expect_error(
            one,
            FrameKind.REGISTER_PRODUCER,
            RegisterProducer("billing", first.id, first.epoch),
            "fenced",
        )
        again = RegisterProducer("billing", second.id, second.epoch)
        assert await register(two, again) == second


async def test_a_fenced_batch_is_refused_and_the_connection_goes_on(data: Path) -> None:
    async with serving(data) as served:
        one, two = await served.greeted(), await served.greeted()
        number = await one.open_topic("t", durability="os")
        first = await register(one, RegisterProducer("billing"))
        await register(two, RegisterProducer("billing"))
        batch = encode_batch(
            [b"never"], topic=number, producer_id=first.id, producer_epoch=first.epoch
        )
        await one.send(batch)
        assert (await one.expect(FrameKind.REFUSED)).read(Refused).code == "fenced"
        assert (await one.ask(FrameKind.PING)).kind is FrameKind.PONG


async def test_a_producer_that_was_shut_out_commits_no_transactions(data: Path) -> None:
    async with serving(data) as served:
        one, two = await served.greeted(), await served.greeted()
        first = await register(one, RegisterProducer("billing"))
        begun = await one.ask(FrameKind.BEGIN_TRANSACTION, BeginTransaction())
        wanted = CommitTransaction(begun.read(TransactionBegun).ticket)
        await register(two, RegisterProducer("billing"))
        await expect_error(one, FrameKind.COMMIT_TRANSACTION, wanted, "fenced")
        # Nor over a new connection, on which it has tried to get its name back.
        again = await served.greeted()
        old = RegisterProducer("billing", first.id, first.epoch)
        await expect_error(again, FrameKind.REGISTER_PRODUCER, old, "fenced")
        await expect_error(again, FrameKind.COMMIT_TRANSACTION, wanted, "fenced")
        begun = await two.ask(FrameKind.BEGIN_TRANSACTION, BeginTransaction())
        wanted = CommitTransaction(begun.read(TransactionBegun).ticket)
        assert (await two.ask(FrameKind.COMMIT_TRANSACTION, wanted)).kind is FrameKind.OK


class YearsLater:
    """Clocks that are decades further at each look."""

    def __init__(self) -> None:
        self._time_us = 10**15

    def now_us(self) -> int:
        return self.monotonic_us()

    def monotonic_us(self) -> int:
        self._time_us += 10**15
        return self._time_us


async def test_a_name_lasts_as_long_as_a_connection_has_it(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(data) as served:
        one, two, other = [await served.greeted() for _ in range(3)]
        first = await register(one, RegisterProducer("billing"))
        await register(one, RegisterProducer("billing", first.id, first.epoch))
        newest = await register(two, RegisterProducer("billing"))
        producers = served.node.core.producers
        monkeypatch.setattr(producers, "_clocks", YearsLater())
        for peer, connections in ((one, 2), (two, 1)):
            assert list(producers.expire())
            assert (await register(other, RegisterProducer("other"))).epoch
            peer.close()
            await served.until(lambda left=connections: served.connections == left)
            if peer is one:
                again = RegisterProducer("billing", newest.id, newest.epoch)
                assert await register(two, again) == newest
        assert list(producers.expire())
        assert (await register(other, RegisterProducer("billing"))).id != newest.id


@pytest.mark.parametrize(
    "wanted",
    [
        RegisterProducer(""),
        RegisterProducer("ä" * 128),
        RegisterProducer("new", -1, 1),
        RegisterProducer("new", 2**63, 1),
        RegisterProducer("new", 5, 0),
        RegisterProducer("new", 5, 2**16),
    ],
)
async def test_a_name_or_a_number_that_can_not_be_is_refused(wanted: RegisterProducer) -> None:
    async with serving() as served:
        peer = await served.greeted()
        await expect_error(peer, FrameKind.REGISTER_PRODUCER, wanted, "invalid_argument")
