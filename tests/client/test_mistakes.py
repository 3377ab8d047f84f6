"""Mistakes that are easily made, each answered by a sentence that says what to do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fanlog
from fanlog import errors
from fanlog.client.address import parse_url
from fanlog.config import ListenerOptions
from tests.client.ways import PATIENCE_SECONDS, BrokerClock, until

FREE_PORT = fanlog.Config(listener=ListenerOptions(port=0))


@pytest.mark.parametrize("name", [None, 7, b"t"])
async def test_a_topic_name_of_the_wrong_type_is_refused_at_once(name: Any) -> None:
    async with fanlog.Broker(config=FREE_PORT) as broker:
        url = f"fanlog://127.0.0.1:{broker.listen().port}"
        async with fanlog.connect(url) as client:
            for ask in (client.publish(name, b"x"), client.send(name, b"x")):
                with pytest.raises(errors.InvalidArgumentError, match="is a str"):
                    await ask
            with pytest.raises(errors.InvalidArgumentError, match="is a str"):
                client.subscribe(name)
            with pytest.raises(errors.InvalidArgumentError, match="is a str"):
                await client.create_topic(name)
            await client.publish("t", b"still fine")
            assert client.reconnects == 0


async def test_a_broker_that_was_not_entered_says_so() -> None:
    with pytest.raises(errors.ClosedError, match="async with"):
        await fanlog.Broker().publish("t", b"x")


async def test_a_client_that_was_not_awaited_says_so() -> None:
    connecting: Any = fanlog.connect("fanlog://127.0.0.1:1")
    with pytest.raises(AttributeError, match=r"await fanlog\.connect"):
        connecting.publish("t", b"x")


@pytest.mark.parametrize("start", [-1, 1 << 63, 10**20])
async def test_an_offset_that_none_can_be_is_refused(start: int) -> None:
    async with fanlog.Broker() as broker:
        with pytest.raises(errors.InvalidArgumentError, match="offset"):
            broker.subscribe("t", start=start)


async def test_a_folder_of_somebody_elses_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(errors.FolderUnusableError, match="not empty"):
        async with fanlog.Broker(tmp_path):
            pass
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


async def test_a_pattern_where_one_topic_is_meant_is_told_so() -> None:
    async with fanlog.Broker() as broker:
        with pytest.raises(errors.TopicNotFoundError, match="pattern"):
            await broker.describe_topic("orders.>")


@pytest.mark.parametrize(
    ("call", "wrong"),
    [
        (lambda c: c.consume("t", group="g", member=3), "member"),
        (lambda c: c.consume("t", group="g", session_seconds="10"), "session_seconds"),
        (lambda c: c.consume("t", group="g", window_bytes="1MB"), "window_bytes"),
        (lambda c: c.subscribe("t", durable=7), "durable"),
        (lambda c: c.work("t", queue="q", prefetch="5"), "prefetch"),
        (lambda c: c.work("t", queue="q", worker=4), "worker"),
        (lambda c: c.transaction(id=4711), "id"),
        (lambda c: c.transaction(timeout_seconds="5"), "timeout_seconds"),
        (lambda c: c.join_transaction(7), "ticket"),
    ],
)
async def test_an_argument_of_the_wrong_type_does_not_cost_the_connection(
    call: Callable[[Any], Any], wrong: str
) -> None:
    no_offsets: Any = {0: "x"}
    async with fanlog.Broker(config=FREE_PORT) as broker:
        url = f"fanlog://127.0.0.1:{broker.listen().port}"
        async with fanlog.connect(url) as client:
            with pytest.raises(errors.InvalidArgumentError, match=wrong):
                call(client)
            with pytest.raises(errors.InvalidArgumentError, match="offset"):
                await client.delete_records("t", no_offsets)
            await client.publish("t", b"still fine")
            assert client.reconnects == 0


async def test_a_reset_policy_that_there_is_none_of_is_answered_with_those_there_are() -> None:
    wrong: Any = "begin"
    async with fanlog.Broker() as broker:
        with pytest.raises(errors.InvalidArgumentError, match="earliest, latest, none"):
            broker.consume("t", group="g", reset=wrong)
        with pytest.raises(errors.InvalidArgumentError, match="earliest, latest, none"):
            broker.work("t", queue="q", reset=wrong)


async def test_only_a_message_can_be_committed_and_only_a_members_positions() -> None:
    async with fanlog.Broker() as broker:
        await broker.publish("t", b"x")
        async with broker.consume("t", group="g", reset="earliest") as member:
            offset: Any = (await member.next(PATIENCE_SECONDS)).offset
            with pytest.raises(errors.InvalidArgumentError, match="message"):
                await member.commit(offset)
            async with broker.subscribe("t") as reader, broker.transaction() as tx:
                others: Any = ("g", reader)
                for other in others:
                    with pytest.raises(errors.InvalidArgumentError, match=r"client\.consume"):
                        tx.commit_offsets(other)


@pytest.mark.parametrize("source", ["orders", "orders.>", "*.rich", ">"])
async def test_a_transformation_does_not_feed_itself(source: str) -> None:
    target = "orders" if source == "orders" else "orders.rich"
    async with fanlog.Broker() as broker:
        with pytest.raises(errors.InvalidArgumentError, match="without end"):
            await broker.transform(source, target, lambda message: message.value, group="g")


async def test_what_must_be_a_function_is_one() -> None:
    nothing: Any = "no function"
    plain: Any = lambda tx: None  # noqa: E731
    async with fanlog.Broker() as broker:
        with pytest.raises(errors.InvalidArgumentError, match="function"):
            await broker.transform("a", "b", nothing, group="g")
        with pytest.raises(errors.InvalidArgumentError, match="function"):
            await broker.run_transaction(nothing)
        with pytest.raises(errors.InvalidArgumentError, match="async def"):
            await broker.run_transaction(plain)


async def test_a_blocking_transaction_that_has_not_begun_says_so_at_once() -> None:
    async with fanlog.Broker(config=FREE_PORT) as broker:
        url = f"fanlog://127.0.0.1:{broker.listen().port}"

        def forget_with() -> None:
            with fanlog.sync.connect(url) as client:
                client.transaction().publish("t", b"x")

        with pytest.raises(errors.InvalidArgumentError, match="has not begun"):
            await asyncio.to_thread(forget_with)


async def test_an_outcome_of_the_wrong_type_is_refused_and_the_job_can_still_get_one() -> None:
    async with fanlog.Broker() as broker:
        await broker.publish("t", b"x")
        async with broker.work("t", queue="q") as worker:
            job = await worker.next(PATIENCE_SECONDS)
            wrong: Any = ValueError("no luck")
            for outcome in (job.nack(reason=wrong), job.reject(wrong)):
                with pytest.raises(errors.InvalidArgumentError, match=r"str\(error\)"):
                    await asyncio.wait_for(outcome, PATIENCE_SECONDS)
            no_number: Any = "no luck"
            for outcome in (job.nack(no_number), job.extend(no_number)):
                with pytest.raises(errors.InvalidArgumentError, match="seconds"):
                    await outcome
            await job.ack()


async def test_a_second_outcome_on_a_job_is_told_so() -> None:
    async with fanlog.Broker() as broker:
        await broker.publish("t", b"x")
        async with broker.work("t", queue="q") as worker:
            job = await worker.next(PATIENCE_SECONDS)
            await job.ack()
            for again in (job.ack(), job.nack(), job.reject()):
                with pytest.raises(errors.LeaseLostError, match="outcome already"):
                    await again
            with pytest.raises(errors.LeaseLostError, match="outcome already"):
                job.ack_soon()


async def test_a_worker_that_waits_with_its_hands_full_is_told_why(
    caplog: pytest.LogCaptureFixture, broker_clock: BrokerClock
) -> None:
    """The broker's time stands still: what it has in hand stays there."""

    def said() -> int:
        lines = [record.getMessage() for record in caplog.records]
        return len([line for line in lines if "ack the jobs" in line])

    async with fanlog.Broker() as broker:
        await broker.publish_many("t", [b"1", b"2"])
        async with broker.work("t", queue="q", visibility_seconds=0.2) as worker:
            job = await worker.next(PATIENCE_SECONDS)
            waiting = asyncio.ensure_future(worker.next(PATIENCE_SECONDS))
            await until(lambda: said() > 0)
            await asyncio.sleep(0.5)
            assert (said(), waiting.done()) == (1, False)
            await job.ack()
            assert (await waiting).value == b"2"


async def test_a_loop_over_a_closed_subscription_or_worker_says_that_it_is_closed() -> None:
    async with fanlog.Broker() as broker:
        subscription = broker.subscribe("a")
        worker = broker.work("a", queue="q")
        for closed in (subscription, worker):
            await closed.start()
            await closed.close()
            for iterated in (closed, closed.batches()):
                with pytest.raises(errors.ClosedError):
                    async for _ in iterated:
                        pass


async def test_a_value_that_is_not_json_is_named_by_its_place() -> None:
    async with fanlog.Broker() as broker:
        await broker.publish("a", b"{not json")
        async with broker.subscribe("a", start="earliest") as messages:
            message = await messages.next(timeout_seconds=PATIENCE_SECONDS)
    with pytest.raises(
        errors.DecodeError, match=r"The value of a/0@0 is not JSON: .*message\.value"
    ):
        message.json()


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("fanlog://me:secret@127.0.0.1:7420", "FANLOG_KEY"),
        ("fanlog://127.0.0.1:7420?linger_ms=5", r"give options to connect\(\)"),
        ("http://127.0.0.1", "Write it as fanlog://host:port"),
    ],
)
def test_an_address_with_more_than_host_and_port_is_refused(url: str, sentence: str) -> None:
    with pytest.raises(errors.InvalidArgumentError, match=sentence) as refused:
        parse_url(url)
    assert "secret" not in str(refused.value)
