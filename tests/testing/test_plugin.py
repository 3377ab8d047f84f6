"""The pytest plugin, as a project that uses Fanlog has it: every example of docs/testing.md, with
and without other plugins, and what it costs those who do not use it."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs/testing.md").read_text("utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", DOCUMENT, re.DOTALL | re.MULTILINE)
PLUGIN = "pytest_fanlog"


def run(folder: Path, code: str, *given: str) -> subprocess.CompletedProcess[str]:
    """A project's tests, in a process of their own, without this project's settings."""
    folder.mkdir(exist_ok=True)
    (folder / "test_project.py").write_text(code)
    (folder / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    loaded = [] if is_installed() else ["-p", PLUGIN]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *loaded, *given],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )


def is_installed() -> bool:
    """Whether pytest finds the plugin by itself: in an environment that was set up before the
    plugin was there it does not."""
    return any(point.value == PLUGIN for point in importlib.metadata.entry_points(group="pytest11"))


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_the_examples_of_the_document_pass(tmp_path: Path, number: int) -> None:
    ran = run(tmp_path, EXAMPLES[number])
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert re.search(r"^[1-9]\d* passed in", ran.stdout, re.MULTILINE)


def test_the_failure_of_the_document_is_the_one_that_is_shown(tmp_path: Path) -> None:
    code = """
def test_it(fanlog_broker):
    fanlog_broker.publish("orders", {"tea": 2}, key="alice")
    fanlog_broker.assert_published("orders", key="alice", json={"tea": 3}, timeout_seconds=0)
"""
    ran = run(tmp_path, code)
    assert ran.returncode == 1
    (shown,) = re.findall(
        r"^```text\nAssertionError: (.*?)^```$", DOCUMENT, re.DOTALL | re.MULTILINE
    )
    said = [line.removeprefix("E").strip() for line in ran.stdout.splitlines() if line[:1] == "E"]
    for line in shown.splitlines():
        assert any(line.strip() in one for one in said), ran.stdout


def test_an_asyncio_plugin_is_not_needed_and_does_not_hurt(tmp_path: Path) -> None:
    """anyio brings one of its own, which the tests of this project's examples use."""
    code = """
import pytest

import fanlog.testing

@pytest.mark.anyio
async def test_a_client(fanlog_client, fanlog_broker):
    async with fanlog_client as client:
        await client.publish("t", {"n": 1})
    fanlog_broker.assert_published("t", json={"n": 1})

@pytest.mark.anyio
async def test_a_broker_on_the_loop():
    async with fanlog.testing.broker() as broker:
        await broker.publish("t", "x")
        await broker.assert_published("t", value="x")

@pytest.fixture
def anyio_backend():
    return "asyncio"
"""
    ran = run(tmp_path, code)
    assert "2 passed" in ran.stdout, ran.stdout + ran.stderr


def test_redis_clients_have_an_address_too(tmp_path: Path) -> None:
    code = """
import redis

def test_it(fanlog_redis_url, fanlog_broker):
    with redis.Redis.from_url(fanlog_redis_url) as client:
        with fanlog_broker.subscribe("news", start="earliest") as news:
            client.publish("news", '{"n": 1}')
            assert news.next(60).decode() == {"n": 1}

def test_a_connection_that_is_left_open_does_not_hold_up_the_end(fanlog_sync_client, fanlog_url):
    import socket
    host, port = fanlog_url.removeprefix("fanlog://").split(":")
    with socket.create_connection((host, int(port))):
        fanlog_sync_client.publish("t", "x")
"""
    ran = run(tmp_path, code)
    assert "2 passed" in ran.stdout, ran.stdout + ran.stderr


def test_a_project_that_does_not_use_it_imports_nothing(tmp_path: Path) -> None:
    code = """
import sys

def test_it():
    assert "pytest_fanlog" in sys.modules
    assert not [name for name in sys.modules if name.partition(".")[0] in ("fanlog", "msgspec")]
"""
    ran = run(tmp_path, code)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_plugin_is_declared_and_in_the_wheel() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert project["project"]["entry-points"]["pytest11"] == {"fanlog": PLUGIN}
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert f"src/{PLUGIN}" in packages


def test_every_fixture_is_in_the_document(tmp_path: Path) -> None:
    ran = run(tmp_path, "", "--fixtures", "-v")
    fixtures = set(re.findall(r"^(fanlog_\w+)", ran.stdout, re.MULTILINE))
    assert fixtures == set(re.findall(r"^\| `(fanlog_\w+)`", DOCUMENT, re.MULTILINE))
