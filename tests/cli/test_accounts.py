"""`fanlog key`, `fanlog user` and `fanlog may`, against a broker that asks for logins."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from fanlog.security.keys import digest_of, maybe_parse
from fanlog.security.passwords import matches
from tests.cli.conftest import Ended, Run, Serving

Serve = Callable[..., Serving]


@pytest.fixture
def ask(run: Run, serve: Serve, tmp_path: Path) -> Run:
    """Runs commands as the admin of a broker."""
    made = run("key", "generate", "--out", "admin.key")
    assert made.code == 0, made.err
    assert made.out == ""
    broker = serve(
        "--memory", FANLOG_SECURITY_AUTH="true", FANLOG_SECURITY_ADMIN_KEY_FILE="admin.key"
    )

    def ask(*arguments: str, **more: str) -> Ended:
        login = {"FANLOG_KEY_FILE": str(tmp_path / "admin.key")} if "FANLOG_KEY" not in more else {}
        return run(*arguments, FANLOG_URL=broker.url, **login, **more)

    return ask


def test_keys_and_users_are_managed_by_commands(ask: Run, tmp_path: Path) -> None:
    # Limits
    limits = ("--messages-per-second", "10", "--bytes-per-second", "1000", "--connections", "2")
    quotas = ("--topics", "1", "--stored-bytes", "5000")
    small = ask("key", "create", "small", "--role", "producer", *limits, *quotas)
    assert small.code == 0, small.err
    wanted = {"messages_per_second": 10.0, "bytes_per_second": 1000.0, "connections": 2}
    wanted |= {"topics": 1, "stored_bytes": 5000}
    assert ask("key", "list", "--json").json[1]["allowance"] == wanted
    secret = small.out.strip()
    assert ask("publish", "one", "x", FANLOG_KEY=secret).code == 0
    full = ask("publish", "two", "x", FANLOG_KEY=secret)
    assert full.code != 0
    assert "The user 'small' has 1 topics, and its quota is 1" in full.sentence
    assert ask("key", "revoke", "small").code == 0
    # Keys
    made = ask("key", "create", "shop", "--role", "producer", "--publish", "orders.>")
    key = made.out.strip()
    assert maybe_parse(key) is not None, made
    assert key not in made.err
    assert "shop may: producer; publish orders.>" in made.err
    assert ask("publish", "orders.eu", "x", FANLOG_KEY=key).code == 0
    denied = ask("publish", "users", "x", FANLOG_KEY=key)
    assert denied.code == 77
    assert "The key 'shop' may not publish to 'users'" in denied.sentence
    assert ask("may", "publish", "orders.us", "--key", "shop").out == "yes\n"
    no = ask("may", "subscribe", "orders.us", "--key", "shop")
    assert (no.code, no.out[:4]) == (77, "no: ")
    assert ask("may", "publish", "orders.us", FANLOG_KEY=key).out == "yes\n"
    listed = ask("key", "list").out
    assert [line.split()[0] for line in listed.splitlines()] == ["NAME", "admin", "shop"]
    assert key not in listed
    assert ask("key", "list", "--json").json[1]["rules"]["publish"] == ["orders.>"]
    expires = ask("key", "expire", "shop", "7d", "--json").json
    assert expires["expires_us"] > expires["created_us"]
    assert "never" in ask("key", "expire", "shop", "never").out
    rotated = ask("key", "rotate", "shop", "--grace", "1h", "--out", "new.key")
    assert "The old secret is good until" in rotated.err
    file = tmp_path / "new.key"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert ask("publish", "orders.eu", "x", FANLOG_KEY=file.read_text().strip()).code == 0
    assert ask("publish", "orders.eu", "x", FANLOG_KEY=key).code == 0
    assert ask("key", "rotate", "shop", "--out", "new.key").code == 4
    assert "changed" in ask("key", "set", "shop", "--comment", "changed").out
    assert ask("key", "revoke", "shop").out.startswith("shop is revoked")
    refused = ask("publish", "orders.eu", "x", FANLOG_KEY=key)
    assert refused.code == 77
    assert "ask the operator" in refused.sentence
    assert ask("key", "show", "shop").code == 3
    assert ask("key", "create", "nothing").code == 2
    assert ask("key", "create", "admin", "--role", "viewer").code == 4
    # Users
    (tmp_path / "word").write_text("correct horse\n")
    ask("user", "create", "ann", "--role", "viewer", "--password-file", "word")
    as_ann = {"FANLOG_USER": "ann", "FANLOG_PASSWORD_FILE": "word", "FANLOG_KEY": ""}
    assert ask("topic", "list", **as_ann).code == 0
    assert ask("publish", "orders.eu", "x", **as_ann).code == 77
    assert ask("user", "create", "bob", "--role", "viewer", stdin="short\n").code == 2
    assert ask("user", "passwd", "ann", stdin="another horse\n").code == 0
    assert ask("topic", "list", **as_ann).code == 77
    assert "disabled" in ask("user", "set", "ann", "--disable").out
    assert ask("user", "list").out.splitlines()[1].split()[0] == "ann"
    assert ask("user", "delete", "ann").code == 0
    assert ask("user", "show", "ann").code == 3


def test_a_secret_in_an_address_is_refused_as_a_flag(ask: Run, tmp_path: Path) -> None:
    key = (tmp_path / "admin.key").read_text().strip()
    ended = ask("topic", "list", "--url", f"fanlog://:{key}@127.0.0.1:1")
    assert ended.code == 2
    assert "FANLOG_KEY_FILE" in ended.sentence
    assert key not in ended.err
    assert ask("topic", "list", FANLOG_KEY=make_wrong(key)).code == 77
    nobody = ask("topic", "list", FANLOG_KEY_FILE="", FANLOG_KEY="")
    assert nobody.code == 77
    assert "fanlog key create" in nobody.sentence


def make_wrong(key: str) -> str:
    return key[:-1] + ("A" if key[-1] != "A" else "B")


def test_what_a_config_file_needs_is_made_without_a_broker(run: Run, tmp_path: Path) -> None:
    made = run("key", "generate", "--json").json
    parsed = maybe_parse(made["key"])
    assert parsed is not None
    assert made["hash"] == f"{parsed.id}:{digest_of(parsed.secret)}"
    hashed = run("user", "hash", stdin="correct horse\n").out.strip()
    assert matches("correct horse", hashed)
    (tmp_path / "fanlog.toml").write_text(
        "[security]\nauth = true\n"
        f'[keys.shop]\nhash = "{made["hash"]}"\nrole = "producer"\n'
        f'[users.ann]\npassword_hash = "{hashed}"\nsubscribe = ["orders.>"]\n'
    )
    assert run("config", "check").code == 0
    shown = run("config", "show").out
    assert hashed not in shown
    (tmp_path / "fanlog.toml").write_text('[keys.shop]\nhash = "x"\nroel = "producer"\n')
    wrong = run("config", "check")
    assert wrong.code == 65
    assert "keys.shop" in wrong.err
    assert "roel" in wrong.err
