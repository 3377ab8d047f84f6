"""A web developer reads the README from the top: a first message, a program, workers, Redis.
The steps follow one another, in one environment."""

from __future__ import annotations

import re
import signal

import pytest

from tests.users.documents import Page
from tests.users.user import User, in_a_program

README = Page("README.md")
SHARED_WORK = "Groups, queues, transactions, dead letters"


@pytest.fixture(scope="module", autouse=True)
def broker(user: User) -> None:
    user.types("pip install fanlog")
    serving = user.leaves_running("fanlog serve")
    serving.wait_for("Try it, in two other terminals")


def test_a_first_message_in_three_terminals(user: User) -> None:
    follow, publish = README.of("A first message in one minute", "sh")[:2]
    tail = user.leaves_running(follow)
    tail.wait_for("greetings does not exist yet; waiting for its first message")
    user.types(publish)
    tail.wait_for("hello")
    assert "greetings" in user.types("fanlog topic list")
    assert "greetings" in user.types("fanlog topic describe greetings")
    user.types("fanlog health")


def test_the_first_program_stores_an_order_and_reads_it(user: User) -> None:
    said = user.runs(README.one("From Python", "python", "create_topic"))
    assert re.search(r"stored at offset 0, fsync", said)
    assert re.search(r"alice.*tea", said)


def test_the_first_program_can_be_run_again(user: User) -> None:
    assert "fsync" in user.runs(README.one("From Python", "python", "create_topic"))


def test_plain_code(user: User) -> None:
    said = user.runs(README.one("From Python", "python", "fanlog.sync.connect"))
    assert said == "hello\n"


def test_an_embedded_broker(user: User) -> None:
    said = user.runs(README.one("From Python", "python", "fanlog.Broker("))
    assert "greetings" in said
    assert (user.home / "data").is_dir()


def test_a_worker_goes_on_after_a_bad_job_which_becomes_a_dead_letter(user: User) -> None:
    lines = README.one(SHARED_WORK, "python", "async with client.work(")
    send = """
        async def send(email):
            if "to" not in email:
                raise ValueError("nobody to send it to")
            print("sent to", email["to"])
    """
    # The reader's own address, and a topic that the first email makes.
    user.types("""fanlog publish emails '{"to": "alice"}'""")
    worker = user.starts(in_a_program(lines, send))
    worker.wait_for("sent to alice")
    user.types("fanlog publish emails '{}'")
    user.types("""fanlog publish emails '{"to": "bob"}'""")
    worker.wait_for("sent to bob")
    said = worker.wait_for("nobody to send it to")
    assert "Traceback (most recent call last)" not in said.partition("sent to alice")[0]
    worker.stop()


def test_a_function_works_until_sigterm(user: User) -> None:
    lines = README.one(SHARED_WORK, "python", '"emails", send')
    send = """
        async def send(job):
            print("got", job.text)
    """
    worker = user.starts(in_a_program(lines, send, 'print("stopped")'))
    user.types("""fanlog publish emails '{"to": "carol"}'""")
    worker.wait_for("carol")
    assert worker.stop(signal.SIGTERM) == 0
    assert "stopped" in worker.said


def test_a_group_handles_each_order(user: User) -> None:
    lines = README.one(SHARED_WORK, "python", 'client.consume("orders')
    invoices = """
        class invoices:
            async def add(order):
                print("billed", order)
    """
    user.types("""fanlog publish orders '{"coffee": 2}'""")
    member = user.starts(in_a_program(lines, invoices))
    member.wait_for("billed {'coffee': 2}")
    user.types("""fanlog publish orders '{"coffee": 3}'""")
    member.wait_for("billed {'coffee': 3}")
    assert member.stop(signal.SIGTERM) == 0
    described = user.types("fanlog group describe billing")
    assert "orders" in described


def test_a_transaction(user: User) -> None:
    user.runs(in_a_program(README.one(SHARED_WORK, "python", "client.transaction(")))
    assert "-1" in user.types("fanlog tail stock --from earliest --count 1")


def test_compacted_topics(user: User) -> None:
    user.runs(in_a_program(README.one(SHARED_WORK, "python", 'cleanup="compact"')))
    assert "prices" in user.types("fanlog topic list")


def test_redis_clients_share_the_messages(user: User) -> None:
    user.types("pip install redis")
    lines = README.one("With Redis clients", "python", "redis.Redis(")
    follower = user.starts(lines)
    follower.wait_for("'type': 'message'")
    follower.stop()
