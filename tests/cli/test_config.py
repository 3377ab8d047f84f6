"""`fanlog config`, and which of file, environment and flag wins."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from fanlog.cli.options import all_options
from fanlog.cli.settings import check_document, load_settings, unknown_variables
from fanlog.config import Config
from tests.cli.conftest import Run


def shown(ended: Any) -> dict[str, tuple[Any, str]]:
    return {line["option"]: (line["value"], line["source"]) for line in ended.json}


def test_flags_win_over_the_environment_and_it_over_the_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "fanlog.toml").write_text(
        'data = "from-file"\n[listener]\nport = 1\nhost = "10.0.0.1"\n'
        '[topic]\nsegment_bytes = "64MB"\nretention_seconds = "7d"\n'
    )
    ended = run(
        *("config", "show", "--json", "--port", "3"),
        FANLOG_LISTENER_PORT="2",
        FANLOG_DATA="from-environment",
    )
    settings = shown(ended)
    assert settings["listener.port"] == (3, "flag")
    assert settings["data"] == ("from-environment", "environment")
    assert settings["listener.host"] == ("10.0.0.1", "file")
    assert settings["topic.segment_bytes"] == (64_000_000, "file")
    assert settings["topic.retention_seconds"] == (604_800, "file")
    assert settings["topic.durability"] == ("os", "default")
    table = run("config", "show", "--port", "3").out
    assert re.search(r"listener\.port +3 +flag --port", table)


def test_the_file_that_init_writes_is_well_and_changes_nothing(run: Run, tmp_path: Path) -> None:
    assert run("config", "init").code == 0
    written = (tmp_path / "fanlog.toml").read_text()
    assert run("config", "check", "fanlog.toml").code == 0
    assert all(f"# {option.name} = " in written for option in all_options().values())
    assert all(option.reason for option in all_options().values())
    assert "Allowed: empty, dead-letter, inbox or stream." in " ".join(
        written.replace("#", "").split()
    )
    assert "Allowed: ," not in written
    uncommented = re.sub(r"^# (?=\w+ = )", "", written, flags=re.MULTILINE)
    (tmp_path / "all.toml").write_text(uncommented)
    checked = list(check_document(tomllib.loads(uncommented)))
    assert len(checked) == len(all_options())
    assert load_settings(tmp_path / "all.toml", {}, {}).config == Config()


def test_init_overwrites_only_by_force(
    typed: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text("# mine\n")
    ended = typed("config", "init", "mine.toml")
    assert ended.code == 4
    assert "give --force" in ended.sentence
    assert (tmp_path / "mine.toml").read_text() == "# mine\n"
    assert typed("config", "init", "mine.toml", "--force").code == 0
    assert "[listener]" in (tmp_path / "mine.toml").read_text()


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ("[listener]\nprot = 1", "There is no option 'prot' in [listener]; did you mean 'port'?"),
        (
            "[listner]\nport = 1",
            "There is no option or section 'listner'; did you mean 'listener'?",
        ),
        ("port = 1", "There is no option 'port' outside a section; did you mean 'listener.port'?"),
        ("listener = 1", "listener is a section: write [listener], and its options below it."),
        (
            "[listener]\nport = 70000",
            "listener.port is 70000, but must be a number from 0 to 65535.",
        ),
        (
            '[topic]\ndurability = "disk"',
            'topic.durability is "disk", but must be memory, os or fsync.',
        ),
        (
            '[topic]\nsegment_bytes = "1KB"',
            (
                'topic.segment_bytes is "1KB", but must be a size from 64KiB to 1GiB, such as '
                "64KiB or 128MB."
            ),
        ),
        (
            "[broker]\nauto_create_topics = 7",
            "broker.auto_create_topics is 7, but must be true or false.",
        ),
        (
            "[listener]\nhello_timeout_seconds = nan",
            (
                "listener.hello_timeout_seconds is nan, but must be a duration above 0s, such as "
                "500ms, 30s, 10m or 7d."
            ),
        ),
    ],
)
def test_a_fault_in_a_file_is_named_with_what_is_allowed(document: str, sentence: str) -> None:
    (fault,) = check_document(tomllib.loads(document))
    assert str(fault) == sentence


def test_check_says_everything_that_is_wrong_a_line_each(
    typed: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.toml").write_text("dta = 1\n[listener]\nport = -1\n")
    ended = typed("config", "check", "bad.toml")
    assert ended.code == 65
    assert ended.err.splitlines() == [
        "error: bad.toml: There is no option or section 'dta'; did you mean 'data'?",
        "error: bad.toml: listener.port is -1, but must be a number from 0 to 65535.",
    ]


def test_a_broker_with_a_bad_configuration_does_not_start(run: Run, tmp_path: Path) -> None:
    (tmp_path / "fanlog.toml").write_text("[listener\n")
    ended = run("serve")
    assert ended.code == 65
    assert "fanlog.toml is not valid TOML" in ended.sentence
    missing = run("serve", "--config", "missing.toml")
    assert missing.code == 65
    assert "There is no file missing.toml" in missing.err
    wrong = run("serve", "--config", "/dev/null", FANLOG_LISTENER_PORT="high")
    assert wrong.code == 65
    assert wrong.sentence == ("FANLOG_LISTENER_PORT is high, but must be a number from 0 to 65535.")


def test_a_variable_that_sets_nothing_is_remarked_and_a_foreign_one_is_not() -> None:
    remarks = unknown_variables(
        {
            "FANLOG_LISTENER_PROT": "1",
            "FANLOG_NONSENSE": "1",
            "FANLOG_PORT": "tcp://10.0.0.1:7420",
            "FANLOG_PORT_7420_TCP_ADDR": "10.0.0.1",
            "FANLOG_SERVICE_HOST": "10.0.0.1",
            "FANLOG_SERVICE_PORT_NATIVE": "7420",
            "FANLOG_URL": "x",
        }
    )
    ignored = "is ignored: there is no such option."
    assert remarks == [
        f"The variable FANLOG_LISTENER_PROT {ignored} Try FANLOG_LISTENER_PORT.",
        f"The variable FANLOG_NONSENSE {ignored} See them with: fanlog config show",
    ]


def test_a_password_is_never_shown(run: Run) -> None:
    for form in ([], ["--json"]):
        shown = run("config", "show", *form, FANLOG_REDIS_PASSWORD="tea and milk")
        assert shown.code == 0
        assert "tea and milk" not in shown.out + shown.err
        assert "********" in shown.out


def test_a_password_in_an_address_is_not_shown(run: Run) -> None:
    given = "redis://:hidden@10.0.0.5:6379"
    for arguments in (["config", "show"], ["config", "show", "--json"]):
        shown = run(*arguments, FANLOG_EDGE_UPSTREAM=given)
        assert "hidden" not in shown.out + shown.err
        assert "redis://********@10.0.0.5:6379" in shown.out
