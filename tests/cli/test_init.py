"""`fanlog init`: from nothing to a broker that one can log in to."""

from __future__ import annotations

import os
import pty
import stat
import tomllib
from pathlib import Path

import pytest

import fanlog
from fanlog.cli.settings import load_settings
from fanlog.errors import ConfigError, UnauthenticatedError
from fanlog.security.keys import make_key
from tests.cli.conftest import COMMAND, Run, Serving, environment


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def answered(folder: Path, answers: list[tuple[str, str]]) -> tuple[int, str]:
    """Runs the wizard in a terminal: its exit code, and what it showed. Each answer is given when
    its question is there."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execve(COMMAND[0], [*COMMAND, "init"], environment(NO_COLOR="1"))
    shown = ""
    for question, answer in answers:
        while question not in shown.rpartition("\n")[2]:
            shown += os.read(terminal, 4096).decode()
        os.write(terminal, f"{answer}\n".encode())
        shown += "\n"
    while True:
        try:
            more = os.read(terminal, 4096).decode()
        except OSError:
            break
        if not more:
            break
        shown += more
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    return os.waitstatus_to_exitcode(status), shown


def test_the_wizard_asks_and_a_broker_starts_with_its_answers(tmp_path: Path) -> None:
    code, shown = answered(
        tmp_path,
        [
            ("Folder for the data", "kept"),
            ("Address to listen on", ""),
            ("Port for Fanlog clients", "0"),
            ("Port for Redis clients", "-1"),
            ("Port for browsers", "70000"),
            ("Port for browsers", "-1"),
            ("Logins", "perhaps"),
            ("Logins", "key"),
            ("TLS", "none"),
        ],
    )
    assert code == 0, shown
    assert "Answer key, own or none." in shown
    assert "fanlog serve --config fanlog.toml" in shown
    key = (tmp_path / "admin.key").read_text().strip()
    assert key not in shown
    assert (mode(tmp_path / "admin.key"), mode(tmp_path / "fanlog.toml")) == (0o600, 0o600)
    serving = Serving(tmp_path, "--redis-port", "-1", "--http-port", "-1")
    try:
        with pytest.raises(UnauthenticatedError), fanlog.sync.connect(serving.url):
            pass
        with fanlog.sync.connect(serving.url, key=key) as client:
            client.create_topic("orders")
    finally:
        assert serving.stop().code == 0
    assert (tmp_path / "kept").is_dir()


def test_without_questions_it_makes_a_key_and_certificates(typed: Run, tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    flags = ("--yes", "--auth", "key", "--tls", "dev", "--data", str(tmp_path / "data"))
    done = typed("init", str(file), *flags, "--host", "0.0.0.0", "--port", "7500")
    assert done.code == 0
    document = tomllib.loads(file.read_text())
    assert document["security"] == {"auth": True, "admin_key_file": str(tmp_path / "admin.key")}
    assert Path(document["tls"]["certificate_file"]).is_file()
    assert mode(Path(document["tls"]["private_key_file"])) == 0o600
    assert "FANLOG_URL=fanlogs://127.0.0.1:7500" in done.out
    assert f"FANLOG_TLS_CA_FILE={tmp_path}/tls/ca.pem" in done.out
    assert typed("config", "check", str(file)).code == 0
    key = (tmp_path / "admin.key").read_text()
    assert typed("init", str(file), *flags).code == 4
    again = typed("init", str(file), *flags, "--force")
    assert again.code == 0
    assert (tmp_path / "admin.key").read_text() == key


def test_ones_own_key_and_certificates_are_used(typed: Run, tmp_path: Path) -> None:
    file, key = tmp_path / "fanlog.toml", tmp_path / "mine.key"
    flags = ("init", str(file), "--yes", "--auth", "own", "--key-file", str(key))
    assert typed(*flags).code == 3
    key.write_text("no key\n")
    assert typed(*flags).code == 65
    key.write_text(f"{make_key()}\n")
    own = ("--tls", "own", "--certificate", str(tmp_path / "a.pem"), "--private-key", str(key))
    assert typed(*flags, *own).code == 3
    assert not file.exists()
    (tmp_path / "a.pem").write_text("x")
    assert typed(*flags, *own).code == 0
    assert load_settings(file, {}, {}).config.tls.private_key_file == str(key)


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ((), "This is not a terminal"),
        (("--yes", "--auth", "none", "--host", "0.0.0.0"), "clients should log in"),
        (("--yes", "--port", "7500", "--redis-port", "7500"), "same port"),
        (("--yes", "--port", "70000"), "65535"),
    ],
)
def test_what_would_not_work_writes_nothing(
    run: Run, tmp_path: Path, flags: tuple[str, ...], why: str
) -> None:
    ended = run("init", *flags)
    assert (ended.code, why in ended.err) == (2, True)
    assert list(tmp_path.iterdir()) == []


def test_without_logins_there_is_no_key(typed: Run, tmp_path: Path) -> None:
    file = tmp_path / "fanlog.toml"
    assert typed("init", str(file), "--yes", "--auth", "none").code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["fanlog.toml"]
    assert not load_settings(file, {}, {}).config.security.auth


# Secrets from files and from systemd


def test_a_file_that_is_a_plain_name_is_found_among_systemd_credentials(tmp_path: Path) -> None:
    folder = tmp_path / "credentials"
    folder.mkdir()
    (folder / "redis-password").write_text("hunter2\n")
    (folder / "admin.key").write_text(make_key())
    file = tmp_path / "fanlog.toml"
    file.write_text(
        '[redis]\npassword_file = "redis-password"\n'
        '[security]\nadmin_key_file = "admin.key"\n'
        '[tls]\nprivate_key_file = "/etc/broker.key"\n'
        '[keys.shop]\nkey_file = "admin.key"\nrole = "producer"\n'
    )
    config = load_settings(file, {}, {"CREDENTIALS_DIRECTORY": str(folder)}).config
    assert config.redis.password == "hunter2"
    assert config.security.admin_key_file == str(folder / "admin.key")
    assert config.tls.private_key_file == "/etc/broker.key"
    assert config.keys["shop"].key_file == str(folder / "admin.key")


def test_a_password_from_a_file_is_not_shown(run: Run, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hunter2\n")
    shown = run("config", "show", FANLOG_REDIS_PASSWORD_FILE="secret")
    assert shown.code == 0
    assert "hunter2" not in shown.out + shown.err
    assert "********" in shown.out


@pytest.mark.parametrize("content", [None, "", "two\nlines\n"])
def test_a_password_file_that_is_of_no_use_is_named(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "secret"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError, match=r"redis\.password_file"):
        load_settings(None, {}, {"FANLOG_REDIS_PASSWORD_FILE": str(file)})


def test_a_password_and_a_file_with_one_exclude_each_other(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    both = {
        "FANLOG_REDIS_PASSWORD_FILE": str(tmp_path / "secret"),
        "FANLOG_REDIS_PASSWORD": "hunter2",
    }
    with pytest.raises(ConfigError, match="exclude each other") as raised:
        load_settings(None, {}, both)
    assert "hunter2" not in str(raised.value)
