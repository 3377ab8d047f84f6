"""The public names: what users import stays where it is."""

from __future__ import annotations

import inspect
import subprocess
import sys
from types import ModuleType

import pytest

import fanlog
import fanlog.sync
from fanlog import errors
from fanlog.errors import FanlogError

PUBLIC = {
    "Allowance",
    "KeyInfo",
    "KeyMade",
    "Role",
    "Rules",
    "UserInfo",
    "Backoff",
    "Batch",
    "Broker",
    "Client",
    "ClientOptions",
    "Config",
    "ConnectionInfo",
    "Durability",
    "FanlogError",
    "Gap",
    "GroupInfo",
    "GroupMember",
    "Handled",
    "Job",
    "JobBatch",
    "Message",
    "MessageBatch",
    "MessagesLostError",
    "Outgoing",
    "PendingMessage",
    "PresenceInfo",
    "PresentUser",
    "Receipt",
    "ScheduleInfo",
    "Scheduled",
    "SlowPolicy",
    "Stream",
    "StreamReader",
    "Subscription",
    "Topic",
    "TopicInfo",
    "TopicPartition",
    "TopicSettings",
    "Transaction",
    "TypedGroupMember",
    "TypedJob",
    "TypedMessage",
    "TypedSubscription",
    "TypedWorker",
    "WebConnectionInfo",
    "Worker",
    "__version__",
    "connect",
    "errors",
    "processing",
    "sync",
    "testing",
}
PUBLIC_SYNC = {
    "Broker",
    "Client",
    "GroupMember",
    "Job",
    "JobBatch",
    "Stream",
    "StreamReader",
    "Subscription",
    "Topic",
    "Transaction",
    "TypedGroupMember",
    "TypedJob",
    "TypedSubscription",
    "TypedWorker",
    "Worker",
    "connect",
}


@pytest.mark.parametrize(("module", "names"), [(fanlog, PUBLIC), (fanlog.sync, PUBLIC_SYNC)])
def test_the_public_names_are_these_and_no_others(module: ModuleType, names: set[str]) -> None:
    assert set(module.__all__) == names
    assert list(module.__all__) == sorted(module.__all__)
    for name in names:
        assert hasattr(module, name)


def test_the_blocking_client_can_do_what_the_asyncio_client_can() -> None:
    """The same methods, with the same arguments."""

    def methods(kind: type) -> dict[str, list[str]]:
        return {
            name: list(inspect.signature(member).parameters)
            for name, member in inspect.getmembers(kind, inspect.isfunction)
            if not name.startswith("_")
        }

    theirs = methods(fanlog.sync.Client)
    ours = methods(fanlog.Client)
    inner = {"open", "attach", "detach", "decoded", "write", "ask", "take_number", "open_topic"}
    inner |= {"forget_topic", "publish_each"}
    assert set(theirs) == set(ours) - inner
    for name, parameters in theirs.items():
        if name != "close":
            assert parameters == ours[name], name


def all_errors(root: type[FanlogError] = FanlogError) -> list[type[FanlogError]]:
    """The tree of `errors.py`; benchmarks and commands have errors of their own, off the wire."""
    here = [kind for kind in root.__subclasses__() if kind.__module__ == errors.__name__]
    return [root, *(e for branch in here for e in all_errors(branch))]


def test_every_error_has_a_code_of_its_own() -> None:
    everything = all_errors()
    codes = [error.code for error in everything]
    assert len(codes) == len(set(codes))
    assert {code: error.__name__ for code, error in errors.BY_CODE.items()} == {
        error.code: error.__name__ for error in everything
    }
    for error in everything:
        assert "code" in vars(error), f"{error.__name__} has no code of its own"
        assert error.code == error.code.lower()
        assert error.code.replace("_", "").isalpha()


def test_every_error_is_drawn_in_the_tree_at_the_top_of_its_file() -> None:
    tree = errors.__doc__ or ""
    for error in all_errors():
        assert error.__name__ in tree


@pytest.mark.parametrize("error", all_errors(), ids=lambda error: error.__name__)
def test_every_error_comes_back_from_the_wire_as_itself(error: type[FanlogError]) -> None:
    back = errors.from_wire(error.code, "what to do")
    assert type(back) is error
    assert back.message == str(back) == "what to do"


def test_a_code_of_a_newer_peer_is_a_plain_error() -> None:
    assert type(errors.from_wire("from_the_future", "x")) is FanlogError


def test_a_damaged_error_keeps_its_offsets_on_the_wire() -> None:
    back = errors.from_wire("damaged", "x", 3, 9)
    assert isinstance(back, errors.DamagedError)
    assert (back.first, back.next) == (3, 9)


def test_every_public_name_is_there_when_it_is_asked_for() -> None:
    for name in fanlog.__all__:
        assert getattr(fanlog, name) is not None
        assert name in dir(fanlog)


def test_importing_fanlog_loads_no_client_and_no_broker() -> None:
    program = "import fanlog, sys; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()
    heavy = ("asyncio", "uvloop", "fanlog.client", "fanlog.broker", "fanlog.node")
    assert not set(heavy) & set(loaded)


def test_a_name_that_is_not_there_is_an_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'conect'"):
        fanlog.__getattr__("conect")
