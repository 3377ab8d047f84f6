"""Settings are changed while the broker runs: all or none of them, in its file too, and audited."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

import fanlog
from fanlog.cli import toml_file
from fanlog.cli.listening import check_ports
from fanlog.cli.live import ServedSettings
from fanlog.cli.options import Option, all_options
from fanlog.cli.settings import load_settings
from fanlog.config import Config, ListenerOptions
from fanlog.errors import ConfigError, InvalidArgumentError, NotSupportedError
from fanlog.format.frames import FrameKind
from fanlog.format.messages import decode
from fanlog.format.settings import ConfigRequest, SettingsChanged, SettingsShown
from fanlog.identity import Identity
from fanlog.node import Node
from fanlog.security.audit import AUDIT_TOPIC, AuditRecord, decode_record
from fanlog.security.dev_certificates import open_authority

OPERATOR = Identity("ops", "192.0.2.7:1", "native")
FILE = """\
# Ours.
[listener]
host = "127.0.0.1"
port = 0
drain_seconds = 0  # quick
[redis]
port = 0
[web]
port = 0
"""


class Live:
    """A broker with its settings in a file."""

    def __init__(self, node: Node, settings: ServedSettings, file: Path) -> None:
        self.node = node
        self.settings = settings
        self.file = file

    async def set(self, temporary: bool = False, **values: Any) -> SettingsChanged:
        given = {name.replace("__", "."): value for name, value in values.items()}
        return await self.settings.change(OPERATOR, given, temporary=temporary)

    async def audited(self) -> list[AuditRecord]:
        """The audit log once what is noted now is durable."""
        self.node.core.audit.close()
        done = asyncio.get_running_loop().create_future()
        self.node.core.internal.when_durable(done.set_result)
        await done
        topic = self.node.core.catalog.find(AUDIT_TOPIC)
        assert topic is not None
        async with fanlog.connect(f"fanlog://127.0.0.1:{self.port}") as client:
            found: list[AuditRecord] = []
            async with client.subscribe(AUDIT_TOPIC, start="earliest") as records:
                while len(found) < topic.partitions[0].visible_end:
                    found += [decode_record(m.value) for m in (await records.next_batch()).messages]
        return found

    @property
    def port(self) -> int:
        return self.node.listeners[0].port


@asynccontextmanager
async def live(
    folder: Path, environment: dict[str, str] | None = None, text: str = FILE
) -> AsyncIterator[Live]:
    file = folder / "fanlog.toml"
    if text:
        file.write_text(text)
    flags = {} if text else {"listener.port": "0", "redis.port": "0", "web.port": "0"}
    settings = load_settings(file if text else None, flags, environment or {})
    node = Node(None, settings.config)
    node.start()
    node.listen()
    node.listen_redis()
    made = node.core.settings = ServedSettings(node, settings, flags, check_ports)
    try:
        yield Live(node, made, file)
    finally:
        await node.stop()


def held(node: Node, option: Option) -> Any:
    config: Any = node._config  # pyright: ignore[reportPrivateUsage]
    return getattr(getattr(config, option.section), option.name)


def other(option: Option) -> Any:
    """A valid value that is not the default."""
    if option.kind == "choice":
        return next(choice for choice in option.choices if choice != option.default)
    if option.kind == "switch":
        return not option.default
    assert isinstance(option.default, (int, float))
    value = option.default + 1
    return value if option.high is None or value <= option.high else option.default - 1


LIVE = [o for o in all_options().values() if o.live and o.kind != "text"]


async def test_every_live_option_can_be_changed_and_comes_back(tmp_path: Path) -> None:
    # Some can't be other than they are without others.
    alone = [o for o in LIVE if o.path not in ("topic.cleanup", "topic.durability", "topic.role")]
    async with live(tmp_path) as on:
        await on.settings.change(OPERATOR, {o.path: other(o) for o in alone}, temporary=False)
        for option in alone:
            assert held(on.node, option) == other(option), option.path
        assert load_settings(on.file, {}, {}).config.audit.level != Config().audit.level
        await on.settings.change(OPERATOR, {o.path: None for o in alone}, temporary=False)
        for option in alone:
            assert held(on.node, option) == option.default, option.path
    # No other broker's settings were touched.
    assert ListenerOptions() == Config().listener


async def test_a_change_is_in_effect_in_the_file_and_in_the_audit_log(tmp_path: Path) -> None:
    async with live(tmp_path) as on:
        done = await on.set(listener__drain_seconds="30s", topic__retention_seconds="1h")
        assert [(c.option, c.before, c.after, c.live) for c in done.changed] == [
            ("listener.drain_seconds", 0.0, 30.0, True),
            ("topic.retention_seconds", 604800, 3600, True),
        ]
        assert "drain_seconds = 30.0  # quick" in on.file.read_text()
        assert on.file.read_text().startswith("# Ours.\n")
        topic = on.node.core.create_topic("new", {})
        assert topic.settings.retention_seconds == 3600
        last = (await on.audited())[-1]
        assert (last.user, last.action, last.name, last.result) == (
            *("ops", "config.set", "topic.retention_seconds", "ok"),
        )
        assert last.detail == "604800 to 3600"
        await on.set(listener__drain_seconds=0)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"listener.drain_seconds": 5, "listener.hello_timeout_seconds": 0}, "above 0s"),
        ({"listener.drain_seconds": 5, "listener.drain": 1}, "did you mean"),
        ({"listener.drain_seconds": "soon"}, "must be a duration"),
        ({"listener.drain_seconds": 5, "listener.port": 7001, "redis.port": 7001}, "same port"),
        ({}, "1 to 200"),
        ({"k" * 1_000_000: 1}, "^There is no option 'k{100}'"),
        ({"listener.drain_seconds": float("nan")}, "must be a duration"),
        ({"listener.drain_seconds": float("inf")}, "too large: it must be 100000d or less"),
        ({"listener.drain_seconds": 10**400}, "too large"),
        ({"topic.retention_seconds": 1e30}, "too large"),
        ({"topic.retention_bytes": 2**64}, "too large: it must be 8192TiB or less"),
        ({"limits.messages_per_second": "inf"}, "too large"),
    ],
)
async def test_one_wrong_value_changes_nothing(
    tmp_path: Path, values: dict[str, Any], why: str
) -> None:
    async with live(tmp_path) as on:
        with pytest.raises((ConfigError, InvalidArgumentError), match=why):
            await on.settings.change(OPERATOR, values, temporary=False)
        assert on.file.read_text() == FILE
        assert {s.source for s in on.settings.show().settings} == {"default", "file"}
        assert not any(s.pending is not None for s in on.settings.show().settings)
        assert (await on.audited())[-1].result == "failed"


async def test_whoever_has_to_take_a_change_can_refuse_it(tmp_path: Path) -> None:
    async with live(tmp_path) as on:

        def refuse(config: Config) -> None:
            raise ConfigError("The certificate is not there.")

        on.node.on_reload.append(refuse)
        with pytest.raises(ConfigError, match="certificate"):
            await on.set(listener__drain_seconds=5)
        assert on.file.read_text() == FILE
        assert held(on.node, all_options()["listener.drain_seconds"]) == 0


async def test_a_file_that_cannot_be_written_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with live(tmp_path) as on:

        def read_only(*_: object, **__: object) -> None:
            raise ConfigError("It is read-only.")

        monkeypatch.setattr("fanlog.cli.toml_file.replace", read_only)
        with pytest.raises(ConfigError, match="read-only"):
            await on.set(listener__drain_seconds=5)
        assert held(on.node, all_options()["listener.drain_seconds"]) == 0
        done = await on.set(temporary=True, listener__drain_seconds=5)
        assert (done.file, held(on.node, all_options()["listener.drain_seconds"])) == ("", 5)
        shown = {s.option: s for s in on.settings.show().settings}
        assert shown["listener.drain_seconds"].source == "temporary"
        await on.set(temporary=True, listener__drain_seconds=0)


async def test_who_goes_away_while_the_file_is_written_leaves_no_half_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with live(tmp_path) as on:
        begun, resume = threading.Event(), threading.Event()
        replace = toml_file.replace

        def slow(*given: Any) -> None:
            begun.set()
            resume.wait(40)
            replace(*given)

        monkeypatch.setattr(toml_file, "replace", slow)
        # So it is for a request over HTTP whose client closes the connection.
        asked = asyncio.ensure_future(on.set(listener__drain_seconds=5))
        await asyncio.to_thread(begun.wait, 40)
        asked.cancel()
        await asyncio.wait([asked])
        resume.set()
        # The next change waits for the one before.
        await on.set(listener__frame_timeout_seconds=7)
        assert "drain_seconds = 5.0" in on.file.read_text()
        assert held(on.node, all_options()["listener.drain_seconds"]) == 5
        assert "listener.drain_seconds" in [record.name for record in await on.audited()]
        await on.set(listener__drain_seconds=0)


async def test_what_needs_a_restart_says_so(tmp_path: Path) -> None:
    async with live(tmp_path) as on:
        done = await on.set(listener__port=7999)
        assert [(c.option, c.live) for c in done.changed] == [("listener.port", False)]
        shown = {s.option: s for s in on.settings.show().settings}
        assert (shown["listener.port"].value, shown["listener.port"].pending) == (0, 7999)
        assert not shown["listener.port"].live
        assert (await on.audited())[-1].detail == "0 to 7999; needs a restart"
        with pytest.raises(ConfigError, match="needs a restart"):
            await on.set(temporary=True, listener__port=7998)


async def test_what_the_environment_says_is_changed_there(tmp_path: Path) -> None:
    async with live(tmp_path, {"FANLOG_AUDIT_LEVEL": "all"}) as on:
        with pytest.raises(ConfigError, match="comes from FANLOG_AUDIT_LEVEL"):
            await on.set(audit__level="off")


async def test_without_a_file_a_change_has_to_be_temporary(tmp_path: Path) -> None:
    async with live(tmp_path, text="") as on:
        with pytest.raises(ConfigError, match="temporary"):
            await on.set(listener__drain_seconds=0)
        await on.set(temporary=True, listener__drain_seconds=0)


async def test_a_reload_takes_what_was_changed_by_hand(tmp_path: Path) -> None:
    async with live(tmp_path) as on:
        on.file.write_text(FILE.replace("drain_seconds = 0 ", "drain_seconds = 7 ") + "\n[log]\n")
        done = await on.settings.reload(OPERATOR)
        assert [c.option for c in done.changed] == ["listener.drain_seconds"]
        assert held(on.node, all_options()["listener.drain_seconds"]) == 7
        on.file.write_text(FILE + "\n[audit]\nlevel = 1\n")
        with pytest.raises(ConfigError):
            await on.settings.reload(OPERATOR)
        assert held(on.node, all_options()["listener.drain_seconds"]) == 7
        on.file.unlink()
        with pytest.raises(ConfigError):
            await on.settings.reload(OPERATOR)
        on.file.write_text(FILE)
        await on.settings.reload(OPERATOR)
        assert (await on.audited())[-1].action == "config.reload"


async def test_a_change_keeps_what_was_changed_by_hand_meanwhile(tmp_path: Path) -> None:
    async with live(tmp_path) as on:
        on.file.write_text(FILE + '\n[audit]\nlevel = "all"\n')
        await on.set(listener__fetches_max=5)
        assert 'level = "all"' in on.file.read_text()
        assert held(on.node, all_options()["audit.level"]) == "denials"
        on.file.write_text(FILE + "\n[audit]\nlevel = 1\n")
        with pytest.raises(ConfigError, match=r"audit\.level is 1"):
            await on.set(listener__fetches_max=6)


async def test_settings_are_changed_over_the_native_protocol_and_http(tmp_path: Path) -> None:
    async with live(tmp_path) as on:
        site = await on.node.listen_web()
        async with fanlog.connect(f"fanlog://127.0.0.1:{on.port}") as client:
            request = ConfigRequest("change", {"audit.level": "all"})
            answer = await client.ask(FrameKind.CONFIG, request)
            assert decode(SettingsChanged, answer).changed[0].after == "all"
            shown = decode(SettingsShown, await client.ask(FrameKind.CONFIG, ConfigRequest()))
            assert shown.file == str(on.file)
        url = f"http://127.0.0.1:{site.port}/v1"
        async with aiohttp.ClientSession() as http:
            body = {"values": {"audit.level": "changes", "web.accepts_per_second_max": 50.0}}
            async with http.patch(f"{url}/config", json=body) as answered:
                assert answered.status == 200, await answered.text()
                assert len((await answered.json())["changed"]) == 2
            async with http.patch(
                f"{url}/config", json={"values": {"audit.level": "some"}}
            ) as answered:
                assert answered.status == 400
            async with http.get(f"{url}/config") as answered:
                settings = {s["option"]: s for s in (await answered.json())["settings"]}
            assert settings["audit.level"] == {
                "option": "audit.level",
                "value": "changes",
                "source": "file",
                "where": str(on.file),
                "live": True,
            }
            async with http.post(f"{url}/config/reload") as answered:
                assert (await answered.json())["changed"] == []
            await on.audited()
            async with http.get(f"{url}/audit", params={"limit": "2"}) as answered:
                page = await answered.json()
            assert {r["action"] for r in page["records"]} == {"config.set", "config.reload"}
            assert page["next"] is None


async def test_an_embedded_broker_has_its_settings_from_its_program() -> None:
    async with fanlog.Broker() as broker:
        with pytest.raises(NotSupportedError):
            await broker.ask(FrameKind.CONFIG, ConfigRequest())


async def test_a_secret_is_neither_shown_nor_audited(tmp_path: Path) -> None:
    async with live(tmp_path) as on:
        await on.set(redis__password="hunter2")
        assert msgspec.json.encode(on.settings.show()).count(b"hunter2") == 0
        assert all("hunter2" not in record.detail for record in await on.audited())


async def test_other_certificates_are_taken_and_broken_ones_change_nothing(tmp_path: Path) -> None:
    authority = open_authority(tmp_path / "tls")
    first, second = (authority.issue(name, [name]) for name in ("first", "second"))
    text = FILE + (f'\n[tls]\ncertificate_file = "{first[0]}"\nprivate_key_file = "{first[1]}"\n')
    async with live(tmp_path, text=text) as on:
        certificates = on.node.certificates
        assert certificates is not None
        before = certificates.certificate
        await on.set(tls__certificate_file=str(second[0]), tls__private_key_file=str(second[1]))
        taken = certificates.certificate
        assert taken != before
        with pytest.raises(ConfigError, match="private_key_file"):
            await on.set(tls__private_key_file=str(first[1]), listener__drain_seconds=9)
        assert certificates.certificate is taken
        assert held(on.node, all_options()["listener.drain_seconds"]) == 0
        assert str(second[1]) in on.file.read_text()
        off = await on.set(tls__certificate_file=None, tls__private_key_file=None)
        assert {change.live for change in off.changed} == {False}
        assert certificates.certificate is taken
        # Files that were refused already do not keep other settings from being changed.
        second[0].write_text("broken")
        certificates.look()
        await on.set(listener__fetches_max=9)


async def test_tls_is_turned_on_with_a_restart(tmp_path: Path) -> None:
    async with live(tmp_path) as on:
        done = await on.set(tls__certificate_file="broker.pem", listener__drain_seconds=0)
        assert [(change.option, change.live) for change in done.changed] == [
            ("tls.certificate_file", False)
        ]
        assert on.node.certificates is None
