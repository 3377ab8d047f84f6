"""`fanlog health`, `fanlog --help` and what every command has in common."""

from __future__ import annotations

import subprocess
import sys

import fanlog
from fanlog import errors
from fanlog.cli.exit_codes import ExitCode, exit_code_of
from tests.cli.conftest import Run, environment

NOBODY = "fanlog://127.0.0.1:1"


def test_health_of_a_broker_that_is_well_is_0(ask: Run) -> None:
    ended = ask("health", "--json")
    assert ended.code == 0
    assert ended.json["state"] == "ok"
    assert ended.json["release"] == fanlog.__version__
    assert ask("health").out.startswith("ok  fanlog://")


def test_health_of_nobody_is_69(run: Run) -> None:
    ended = run("health", "--url", NOBODY, "--json")
    assert ended.code == 69
    assert ended.json["state"] == "unreachable"
    assert ended.sentence.startswith("No broker answers at 127.0.0.1:1")


def test_every_client_command_says_that_nobody_answers(run: Run) -> None:
    for command in (("topic", "list"), ("publish", "t", "m"), ("tail", "t")):
        ended = run(*command, FANLOG_URL=NOBODY)
        assert ended.code == 69
        assert ended.sentence.startswith("No broker answers at 127.0.0.1:1")


def test_an_address_that_is_none_is_a_usage_error(run: Run) -> None:
    ended = run("health", "--url", "ftp://example")
    assert ended.code == 2
    assert "Write it as fanlog://host:port" in ended.sentence


def test_debug_shows_where_an_error_came_from(run: Run) -> None:
    ended = run("--debug", "health", "--url", NOBODY)
    assert ended.code == 69
    assert "Traceback" in ended.err
    assert ended.err.splitlines()[-1].startswith("error: No broker answers")


def test_the_version_is_told(run: Run) -> None:
    assert run("--version").out == f"fanlog {fanlog.__version__}\n"


def test_help_names_every_command_and_exit_code(run: Run) -> None:
    told = run("--help").out
    for command in ("serve", "publish", "tail", "topic", "health", "config", "bench"):
        assert command in told
    for code in ExitCode:
        assert f"{code.value}  " in told


def test_help_imports_nothing_heavy() -> None:
    heavy = {"fanlog.bench", "matplotlib", "numpy", "rich.progress", "rich.traceback"}
    # Only `serve` and `edge` need these.
    heavy |= {"aiohttp", "fanlog.broker.broker_core", "fanlog.listeners.tcp", "fanlog.node"}
    program = (
        "import sys; from fanlog.cli.app import app; from typer.main import get_command;"
        f"[*get_command(app).commands.values()]; print(sorted({heavy} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[]\n"


def test_a_command_imports_no_other_one() -> None:
    """Somebody waits for a command to begin."""
    code = (
        "import sys; from fanlog.cli import main; main(['topic', 'list', '--url', 'nowhere://']);"
        "print(*(name for name in sys.modules if name.startswith('fanlog.')))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True
    )
    loaded = set(ended.stdout.split())
    assert "fanlog.cli.topics" in loaded
    others = {"cli.serve", "cli.backup", "cli.groups", "cli.pipeline", "broker", "node", "spark"}
    assert not loaded & {f"fanlog.{name}" for name in others}


def test_every_error_has_an_exit_code() -> None:
    codes = {kind.code: exit_code_of(kind("x")) for kind in errors.BY_CODE.values()}
    assert ExitCode.OK not in codes.values()
    assert codes["topic_not_found"] is ExitCode.NOT_FOUND
    assert codes["topic_exists"] is ExitCode.EXISTS
    assert codes["bad_config"] is ExitCode.BAD_DATA
    assert codes["connection_lost"] is ExitCode.UNREACHABLE
    assert codes["disk_full"] is ExitCode.FAILED
