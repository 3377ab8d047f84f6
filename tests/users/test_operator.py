"""An operator starts a broker, breaks it, and looks for what is wrong."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.users.user import Program, User


@pytest.fixture(scope="module", autouse=True)
def installed(user: User) -> None:
    user.types("pip install fanlog")


def serve(user: User, folder: str = "kept") -> Program:
    serving = user.leaves_running(f"fanlog serve --data {folder}")
    serving.wait_for("Try it, in two other terminals")
    return serving


def test_acknowledged_messages_survive_kill_9(user: User) -> None:
    serving = serve(user)
    user.types("fanlog topic create orders --partitions 2 --durability fsync")
    for number in range(5):
        user.types(f"fanlog publish orders 'order {number}' --key k")
    serving.stop(signal.SIGKILL)
    again = serve(user)
    said = user.types("fanlog tail orders --from earliest --count 5")
    assert [f"order {number}" in said for number in range(5)] == [True] * 5
    user.types("fanlog health")
    assert again.stop() == 0


def test_the_broker_drains_on_sigterm(user: User) -> None:
    serving = serve(user)
    assert serving.stop(signal.SIGTERM) == 0
    assert "Drained and stopped" in serving.said


def test_settings_come_from_a_file_and_are_checked(user: User) -> None:
    (user.home / "fanlog.toml").write_text('[topic]\ndurability = "fsync"\n')
    assert "fanlog.toml is valid" in user.types("fanlog config check fanlog.toml")
    assert "fsync" in user.types("fanlog config show --config fanlog.toml")
    (user.home / "wrong.toml").write_text('[topic]\ndurabilty = "fsync"\n')
    ended = user.tries("fanlog config check wrong.toml")
    assert ended.returncode != 0
    assert "durability" in ended.stderr


@pytest.fixture(scope="class")
def serving(user: User) -> Iterator[None]:
    # In a random order other tests come between those that share it.
    started = serve(user, "mistaken")
    user.types("fanlog topic create orders --durability fsync --if-not-exists")
    yield
    started.stop()


@pytest.mark.usefixtures("serving")
class TestMistakes:
    """Of one who has a broker, the same for all of them."""

    @pytest.mark.parametrize(
        ("command", "words"),
        [
            ("fanlog topic describe nothing", "nothing"),
            ("fanlog publish 'orders*' x", "orders.*"),
            ("fanlog serve --data mistaken --port 0 --redis-port -1", "in use"),
            ("fanlog topic create orders --partitions 9", "exist"),
            ("fanlog topic alter orders --durability memory", "durability"),
            ("fanlog tail orders --from yesterday", "yesterday"),
            ("fanlog topic list --url redis://127.0.0.1", "fanlog://"),
        ],
    )
    def test_each_is_answered_with_one_sentence(self, user: User, command: str, words: str) -> None:
        ended = user.tries(command)
        assert ended.returncode != 0
        assert ended.stderr.startswith("error: ")
        assert len(ended.stderr.splitlines()) == 1, ended.stderr
        assert words in ended.stderr


def test_without_a_broker_the_error_says_how_to_start_one(user: User) -> None:
    ended = user.tries("fanlog publish orders tea")
    assert "fanlog serve" in ended.stderr
