"""What handlers and other functions of the application do to the client that calls them: return
what nobody awaits, raise what is no ordinary error, or wait for what is cancelled."""

from __future__ import annotations

import asyncio
import datetime as dt
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import fanlog
import fanlog.sync
import fanlog.testing
from fanlog import errors
from tests.client.ways import PATIENCE_SECONDS

AT_ONCE = fanlog.Backoff(first_seconds=0)


@pytest.fixture
def broker() -> Iterator[fanlog.sync.Broker]:
    with fanlog.sync.Broker() as broker:
        broker.create_topic("t", partitions=1)
        broker.publish_many("t", ["1", "2", "3"])
        yield broker


def consume(broker: Any, handler: Any, until: threading.Event) -> Any:
    return broker.consume(
        "t", handler, group="g", reset="earliest", retry=AT_ONCE, max_attempts=2, until=until
    )


def work(broker: Any, handler: Any, until: threading.Event) -> Any:
    return broker.work("t", handler, queue="q", reset="earliest", max_deliveries=2, until=until)


HANDED = pytest.mark.parametrize("run", [consume, work])


def in_time(call: Callable[[], object]) -> object:
    """What the call returns or raises, which must not take for ever."""
    found: list[object] = []

    def called() -> None:
        try:
            found.append(call())
        except BaseException as fault:  # noqa: BLE001 - it is what the test looks at
            found.append(fault)

    thread = threading.Thread(target=called, daemon=True)
    thread.start()
    thread.join(PATIENCE_SECONDS)
    assert found, "it did not come back"
    return found[0]


class TestPlainCode:
    @HANDED
    def test_an_async_handler_is_refused_and_loses_nothing(
        self, broker: fanlog.sync.Broker, run: Any
    ) -> None:
        async def handler(message: Any) -> None: ...

        with pytest.raises(errors.InvalidArgumentError, match="plain functions"):
            run(broker, handler, threading.Event())
        typed: Any = broker.topic("t", str)
        for call in (typed.consume, typed.work):
            name = "group" if call == typed.consume else "queue"
            with pytest.raises(errors.InvalidArgumentError, match="plain functions"):
                call(handler, **{name: "g"})

    def test_a_function_that_makes_a_coroutine_has_not_handled_a_message(
        self, broker: fanlog.sync.Broker
    ) -> None:
        until = threading.Event()

        async def handle(message: Any) -> None: ...

        def made(message: Any) -> Any:
            if message.text == "3":
                until.set()
            return handle(message)

        found: Any = in_time(lambda: consume(broker, made, until))
        assert found.messages == 0

    def test_other_async_functions_are_refused(self, broker: Any) -> None:
        async def function(*given: Any) -> None: ...

        for call in (
            lambda: broker.consume("t", group="g", on_assign=function),
            lambda: broker.transform("t", "u", function, group="g", idle_seconds=0.1),
            lambda: broker.run_transaction(function),
            lambda: broker.topic("t", int).subscribe(on_undecodable=function),
        ):
            with pytest.raises(errors.InvalidArgumentError, match="plain functions"):
                call()

    @HANDED
    def test_a_handler_that_raises_stop_iteration_fails(
        self, broker: fanlog.sync.Broker, run: Any
    ) -> None:
        until, got = threading.Event(), list[str]()

        def handler(message: Any) -> None:
            got.append(message.text)
            if message.text == "3":
                until.set()
            if message.text == "1":
                next(iter(()))

        in_time(lambda: run(broker, handler, until))
        assert set(got) == {"1", "2", "3"}

    def test_other_functions_that_raise_stop_iteration_fail(self, broker: Any) -> None:
        def function(*given: Any) -> Any:
            return next(iter(()))

        def read() -> str:
            with broker.consume("t", group="g", reset="earliest", on_assign=function) as member:
                return member.next(PATIENCE_SECONDS).text

        assert in_time(read) == "1"
        for call in (
            lambda: broker.transform("t", "u", function, group="h", idle_seconds=0.1),
            lambda: broker.run_transaction(function),
        ):
            assert isinstance(in_time(call), RuntimeError)

    @HANDED
    def test_a_handler_that_exits_ends_the_run(self, broker: fanlog.sync.Broker, run: Any) -> None:
        def handler(message: Any) -> None:
            raise SystemExit(3)

        found = in_time(lambda: run(broker, handler, threading.Event()))
        assert isinstance(found, SystemExit)
        assert found.code == 3
        assert broker.publish("t", "4").offset == 3

    def test_what_send_ran_into_is_raised_by_flush_whatever_it_is(self, broker: Any) -> None:
        broker.send("t", "lost", partition="0")
        time.sleep(0.05)
        broker.send("t", "4")
        with pytest.raises(TypeError):
            broker.flush()
        assert broker.describe_topic("t").partitions[0].visible_end == 4

    def test_headers_may_change_after_send(self, broker: fanlog.sync.Broker) -> None:
        headers: dict[str, bytes | str] = {}
        with broker.transaction() as tx:
            for number in range(20):
                headers["n"] = str(number)
                broker.send("sent", b"x", headers=headers)
                tx.publish("staged", b"x", headers=headers)
        broker.flush()
        for topic in ("sent", "staged"):
            with broker.subscribe(topic, start="earliest") as messages:
                found = [messages.next(PATIENCE_SECONDS).headers["n"] for _ in range(20)]
            assert found == [str(number).encode() for number in range(20)]

    def test_a_callback_in_the_clients_own_thread_does_not_wait_for_itself(self) -> None:
        found: list[object] = []
        with fanlog.testing.sync_broker() as broker:
            client = fanlog.sync.connect(broker.url, backoff_max_seconds=0.1)
            came = threading.Event()

            def lost(error: object) -> None:
                try:
                    client.publish("t", "x")
                except errors.FanlogError as fault:
                    found.append(fault)
                came.set()

            client.on_lost = lost
        assert came.wait(PATIENCE_SECONDS)
        in_time(client.close)
        assert "can't wait for itself" in str(found[0])


class TestAsyncCode:
    @HANDED
    async def test_a_handler_whose_own_task_was_cancelled_fails_and_is_tried_again(
        self, run: Any
    ) -> None:
        got: list[str] = []
        until = asyncio.Event()

        async def handler(message: Any) -> None:
            got.append(message.text)
            if got == ["1"]:
                inner = asyncio.ensure_future(asyncio.sleep(60))
                inner.cancel()
                await inner
            if {"1", "2", "3"} <= set(got[1:]):
                until.set()

        async with fanlog.Broker() as broker:
            await broker.create_topic("t", partitions=1)
            await broker.publish_many("t", ["1", "2", "3"])
            await asyncio.wait_for(run(broker, handler, until), PATIENCE_SECONDS)
        assert sorted(got) == ["1", "1", "2", "3"]

    async def test_a_server_whose_handler_waits_for_what_is_cancelled_answers(self) -> None:
        async def handler(job: Any) -> Any:
            raise asyncio.CancelledError

        async with fanlog.Broker() as broker:
            serving = asyncio.ensure_future(broker.serve("svc", handler))
            for _ in range(2):
                with pytest.raises(errors.RequestError):
                    await broker.request("svc", b"x", timeout_seconds=PATIENCE_SECONDS)
            assert not serving.done()
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    async def test_a_run_that_does_not_begin_leaves_no_task(self) -> None:
        async with fanlog.Broker() as broker:
            before = asyncio.all_tasks()
            for running in (
                broker.consume("none", print, group="g", missing="fail", until=asyncio.Event()),
                broker.work("none", print, queue="q", missing="fail", until=asyncio.Event()),
            ):
                with pytest.raises(errors.TopicNotFoundError):
                    await running
            assert asyncio.all_tasks() <= before


class TestOptions:
    def test_options_of_a_handler_are_refused_without_one(self, broker: Any) -> None:
        asked: Any = broker._behind
        for client in (broker, asked):
            for reader in (client, client.topic("t", str)):
                names = ("t",) if reader is client else ()
                for given in ({"concurrency": 5}, {"until": threading.Event()}):
                    with pytest.raises(errors.InvalidArgumentError, match="handler"):
                        reader.consume(*names, group="g", **given)
                    with pytest.raises(errors.InvalidArgumentError, match="handler"):
                        reader.work(*names, queue="q", **given)

    def test_a_setting_of_a_queue_that_has_the_wrong_type_is_refused(self, broker: Any) -> None:
        with (
            pytest.raises(errors.FanlogError),
            broker.work("t", queue="q", visibility_seconds=dt.timedelta(minutes=5)),
        ):
            pass

    def test_a_time_that_has_no_seconds_is_refused(self, broker: Any) -> None:
        for given in ({"event_time": dt.datetime.min}, {"at": dt.datetime.min}):
            with pytest.raises(errors.InvalidArgumentError, match="0001-01-01"):
                broker.publish("t", b"x", **given)

    def test_text_and_bytes_of_another_content_type_are_as_they_are(self, broker: Any) -> None:
        for kind, value in ((str, "tea"), (bytes, b"\x89PNG")):
            topic = broker.topic(f"of.{kind.__name__}", kind)
            topic.publish(value, headers={"content-type": "text/plain; charset=utf-8"})
            with topic.subscribe(start="earliest") as messages:
                assert messages.next(PATIENCE_SECONDS).data == value

    def test_a_message_that_is_refused_takes_no_other_out_of_its_transaction(
        self, broker: Any
    ) -> None:
        with broker.transaction() as tx:
            tx.publish("t", "4")
            tx.publish("t", "none", partition=99)
            tx.publish("t", "5")
            with pytest.raises(errors.PartitionNotFoundError):
                tx.flush()
        with broker.subscribe("t", start="earliest") as messages:
            assert [messages.next(PATIENCE_SECONDS).text for _ in range(5)] == [
                "1",
                "2",
                "3",
                "4",
                "5",
            ]
