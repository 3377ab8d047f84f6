"""Fronts: the blocking client in front of the asyncio one, typed readers in front of plain ones.
What they take over keeps its parameters, its types and its docstring."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fanlog
import fanlog.sync
from fanlog.client import accounts, aio, dead_letters, operators, web
from fanlog.client.blocking import attributes
from fanlog.client.blocking.front import blocking_docstring
from fanlog.client.forwarding import Front, passed, shown
from fanlog.client.groups import operators as groups

ROOT = Path(__file__).parents[2]
PAIRS = [
    *((getattr(fanlog, name), getattr(fanlog.sync, name)) for name in fanlog.sync.__all__),
    (accounts.Accounts, attributes.BlockingAccounts),
    (dead_letters.DeadLetters, attributes.BlockingDeadLetters),
    (groups.Groups, attributes.BlockingGroups),
    (operators.Connections, attributes.BlockingConnections),
    (web.Web, attributes.BlockingWeb),
]
# What the parts of a client call among themselves; `mkdocs.yml` leaves them out as well.
INNER = {
    *("ask", "attach", "attached", "begin_span", "check_open", "check_unfinished"),
    *("commit_reached", "commit_reached_soon", "decoded", "delivered", "detach", "end"),
    *("end_span", "forget_topic", "hand_over", "hold", "joined", "leased", "leave_with_jobs"),
    *("left", "let_go", "missed_some", "next_run", "noticed", "open_topic", "opened", "opening"),
    *("publish_each", "reached", "resuming", "revoked", "settling", "swallow", "take_number"),
    *("times_came", "took", "write", "kind"),
}
# By class: a blocking client is open when it is made, a worker's answers are its jobs', and the
# web listener of an embedded broker is for programs with asyncio.
INNER_OF = {
    "Client": {"open", "reconnects", "welcome"},
    "Broker": {"open", "reconnects", "welcome", "start", "stop", "listen_web"},
    "Worker": {"reply"},
}


def public(kind: type, which: Any) -> dict[str, Any]:
    found = inspect.getmembers(kind, which)
    return {name: member for name, member in found if not name.startswith("_")}


def parameters(member: Any) -> list[tuple[str, Any, Any]]:
    found = inspect.signature(member).parameters.values()
    return [(p.name, p.kind, p.default) for p in found]


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [pair for pair in PAIRS if inspect.isclass(pair[0])],
    ids=lambda kind: kind.__name__,
)
class TestTheBlockingClient:
    def test_has_every_method_with_the_same_parameters(self, theirs: type, ours: type) -> None:
        inner = INNER | INNER_OF.get(theirs.__name__, set())
        wanted, found = public(theirs, inspect.isfunction), public(ours, inspect.isfunction)
        assert not wanted.keys() - inner - found.keys()
        for name in wanted.keys() & found.keys():
            if (theirs.__name__, name) in (("Client", "close"), ("Broker", "close")):
                continue  # A blocking one never gives up on what was published.
            assert parameters(found[name]) == parameters(wanted[name]), name

    def test_has_every_property(self, theirs: type, ours: type) -> None:
        inner = INNER | INNER_OF.get(theirs.__name__, set())
        assert not public(theirs, inspect.isdatadescriptor).keys() - inner - set(dir(ours))

    def test_says_in_help_what_each_method_does(self, theirs: type, ours: type) -> None:
        for name, member in public(ours, inspect.isfunction).items():
            assert getattr(ours, member.__name__) is member, name
            if name in INNER:
                continue
            assert not inspect.iscoroutinefunction(member), name
            said = inspect.getdoc(member)
            assert said, name
            examples = "".join(re.findall(r"^(?:>>>|\.\.\.).*$", said, re.MULTILINE))
            assert not re.search(r"\b(await|async)\b", examples), name


class Shelf:
    """Something to stand in front of."""

    def __init__(self, books: list[str]) -> None:
        self.books = books

    @property
    def first(self) -> str:
        """The first book."""
        return self.books[0]

    def find(self, word: str, *, last: bool = False) -> str | None:
        """Finds a book.

        >>> shelf.find("tea")
        """
        found = [book for book in self.books if word in book]
        return found[-1 if last else 0] if found else None


class Library(Front[Shelf]):
    first = shown(Shelf, lambda shelf: shelf.first)
    find = passed(Shelf.find)


class TestAFront:
    library = Library(Shelf(["tea at ten", "more tea"]))

    def test_passes_calls_on(self) -> None:
        assert self.library.find("tea") == "tea at ten"
        assert self.library.find("tea", last=True) == "more tea"
        assert self.library.first == "tea at ten"

    def test_calls_what_a_subclass_of_the_one_behind_does(self) -> None:
        class Locked(Shelf):
            def find(self, word: str, *, last: bool = False) -> str | None:
                return None

        assert Library(Locked(["tea"])).find("tea") is None

    def test_keeps_names_signatures_and_docstrings(self) -> None:
        assert Library.find.__qualname__ == "Library.find"
        assert Library.find.__module__ == __name__
        assert str(inspect.signature(Library.find)) == str(inspect.signature(Shelf.find))
        assert Library.find.__doc__ == Shelf.find.__doc__
        assert inspect.getattr_static(Library, "first").__doc__ == "The first book."

    def test_refuses_to_set_a_property(self) -> None:
        with pytest.raises(AttributeError):
            self.library.first = "coffee"  # pyright: ignore[reportAttributeAccessIssue]


def test_docstrings_are_as_one_writes_them_without_asyncio() -> None:
    asynchronous = (
        "Waits; `async with` does it.\n\n>>> async with a:\n...     await b.c()\n(1, 2)\n"
    )
    plain = "Waits; `with` does it.\n\n>>> with a:\n...     b.c()\n(1, 2)\n"
    assert blocking_docstring(asynchronous) == plain


# What a type checker makes of a user's program: an expression, and its type.
REVEALED = {
    'client.publish("t", b"")': "Receipt",
    'client.publish("t", b"", delay_seconds=1)': "Scheduled",
    'client.publish("t", b"", at=1.5, key="k")': "Scheduled",
    'client.publish_many("t", [b""])': "list[Receipt]",
    'client.send("t", [1], key="k")': "None",
    'client.request("t", "x", timeout_seconds=1)': "Message",
    "client.scheduled()": "Iterator[PendingMessage]",
    'client.create_topic("t", partitions=2)': "TopicInfo",
    "client.topics()": "list[TopicInfo]",
    'client.committed("d")': "tuple[Position, ...]",
    "client.connected": "bool",
    "client.state": "Literal['connected', 'reconnecting', 'closed']",
    'client.subscribe("t", start=3)': "BlockingSubscription",
    'client.subscribe("t").next()': "Message",
    'client.subscribe("t").next_batch(1)': "MessageBatch",
    'client.subscribe("t").positions': "tuple[Position, ...]",
    'client.consume("t", group="g")': "BlockingGroupMember",
    'client.consume("t", print, group="g")': "Handled",
    'client.consume("t", group="g").seek("latest")': "tuple[Position, ...]",
    'client.work("t", queue="q").next()': "BlockingJob",
    'client.work("t", queue="q").next().ack()': "None",
    'client.work("t", queue="q").next().decode(int)': "int",
    'client.work("t", queue="q").settings': "QueueSettings",
    'client.stream("s", int).append': "(piece: int) -> Receipt",
    'list(client.stream("s", int).read())': "list[int]",
    'client.stream("s").read().messages()': "Iterator[Message]",
    'client.topic("t", int).publish(3)': "Receipt",
    'client.topic("t", int).publish(3, delay_seconds=1)': "Scheduled",
    'client.topic("t", int).subscribe().next().data': "int",
    'client.topic("t", int).consume(group="g").group': "str",
    'client.topic("t", int).work(queue="q").next().data': "int",
    "client.groups.list()": "list[GroupInfo]",
    "client.connections.list()": "Iterator[ConnectionInfo]",
    'client.dead_letters.replay("t")': "int",
    'client.web.presence("t")': "PresenceInfo",
    "client.accounts.keys()": "list[KeyInfo]",
    "client.transaction().commit().already": "bool",
}
MISTAKES = [
    'client.publish("t")',
    'client.publish("t", b"", ky="k")',
    'client.topic("t", int).publish("three")',
    'client.stream("s", int).append("three")',
    "client.create_topic()",
    'client.consume("t", group="g").seek()',
    'client.subscribe("t", polcy="skip")',
]


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What pyright says of a program that uses the blocking client."""
    folder = tmp_path_factory.mktemp("user")
    lines = [f"reveal_type({one})" for one in REVEALED] + MISTAKES
    program = "import fanlog.sync\n\ndef use(client: fanlog.sync.Client) -> None:\n"
    (folder / "user.py").write_text(program + "".join(f"    {line}\n" for line in lines))
    settings = {"typeCheckingMode": "strict", "extraPaths": [str(ROOT / "src")]}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable],
        cwd=folder,
        env={**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    return json.loads(done.stdout)["generalDiagnostics"]


def test_a_type_checker_knows_what_methods_return(checked: list[dict[str, Any]]) -> None:
    said = [one["message"] for one in checked if one["severity"] == "information"]
    found = dict(re.findall(r'^Type of "(.*)" is "(.*)"$', one)[0] for one in said)
    assert found == REVEALED


def test_a_type_checker_finds_wrong_arguments(checked: list[dict[str, Any]]) -> None:
    faults = [one for one in checked if one["severity"] == "error"]
    first = 3 + len(REVEALED)
    assert {one["range"]["start"]["line"] for one in faults} == {
        first + at for at in range(len(MISTAKES))
    }


def test_an_attribute_of_a_client_is_a_front_of_its_own() -> None:
    """Or users would look for it in vain: each of the asyncio client's is there."""
    made = {name for name in aio.Client.__init__.__code__.co_names if not name.startswith("_")}
    ours = fanlog.sync.Client.__init__.__code__.co_names
    assert {"groups", "connections", "accounts", "dead_letters", "web"} <= made & set(ours)
