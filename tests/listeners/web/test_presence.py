"""Presence over real buses: two web listeners, and the signals of a broker between them."""

from __future__ import annotations

import msgspec
import pytest

from fanlog.errors import InvalidArgumentError, LimitError
from fanlog.listeners.web.presence import PresenceOf
from tests.listeners.web.two_processes import Watching, two_processes, until


def names(presence: PresenceOf) -> list[str]:
    assert isinstance(presence.users, list)
    return [user.user for user in presence.users]


async def test_who_joins_on_one_process_is_there_on_the_other() -> None:
    async with two_processes() as two:
        first, second = two.first.presence, two.second.presence
        watching = Watching()
        second.watch("lobby", watching)
        first.join("lobby", "c1", "ann", b'{"name":"Ann"}')
        await until(lambda: bool(watching.events))
        assert watching.said == [
            {
                "type": "presence",
                "topic": "lobby",
                "count": 1,
                "joined": [{"user": "ann", "info": {"name": "Ann"}}],
                "left": [],
            }
        ]
        assert msgspec.json.decode(msgspec.json.encode(second.snapshot("lobby"))) == {
            "topic": "lobby",
            "count": 1,
            "connections": 1,
            "users": [{"user": "ann", "connections": 1, "info": {"name": "Ann"}}],
        }
        first.gone("c1")
        await until(lambda: len(watching.events) == 2)
        assert watching.said[1]["left"] == [{"user": "ann"}]
        assert second.snapshot("lobby").count == 0


async def test_who_moves_to_another_process_neither_leaves_nor_joins() -> None:
    async with two_processes(presence_grace_seconds=3600.0) as two:
        first, second = two.first.presence, two.second.presence
        watching = Watching()
        first.watch("lobby", watching)
        first.join("lobby", "c1", "ann")
        await until(lambda: len(watching.events) == 1)
        first.gone("c1")
        second.join("lobby", "c2", "ann")
        second.join("lobby", "c3", "bob")
        await until(lambda: len(watching.events) == 2)
        assert [event["joined"] for event in watching.said] == [
            [{"user": "ann"}],
            [{"user": "bob"}],
        ]
        assert [event["left"] for event in watching.said] == [[], []]


async def test_the_people_of_a_listener_that_closes_come_back_or_leave() -> None:
    async with two_processes() as two:
        first, second = two.first.presence, two.second.presence
        for n, user in enumerate(("ann", "bob")):
            first.join("lobby", f"c{n}", user)
        await until(lambda: second.snapshot("lobby").count == 2)
        await two.first.close()
        second.join("lobby", "c9", "bob")
        await until(lambda: names(second.snapshot("lobby")) == ["bob"])
        await until(lambda: second.roster.processes == 1)


async def test_an_event_is_rendered_once_for_all_watchers() -> None:
    async with two_processes() as two:
        presence = two.first.presence
        watchers = [Watching() for _ in range(50)]
        for watching in watchers:
            presence.watch("lobby", watching)
        presence.join("lobby", "c1", "ann")
        await until(lambda: all(watching.events for watching in watchers))
        events = [watching.events[0] for watching in watchers]
        made = [event.rendered("ws", lambda json: b"\x81" + json) for event in events]
        assert len({id(event) for event in events}) == 1
        assert len({id(frame) for frame in made}) == 1


async def test_a_watcher_that_fails_keeps_nobody_from_hearing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Failing:
        def presence_changed(self, event: object) -> None:
            raise RuntimeError("no")

    async with two_processes() as two:
        presence, watching = two.first.presence, Watching()
        failing = Failing()
        presence.watch("lobby", failing)
        presence.watch("lobby", watching)
        presence.join("lobby", "c1", "ann")
        await until(lambda: bool(watching.events))
        assert "a watcher of lobby failed" in caplog.text
        presence.unwatch("lobby", failing)
        presence.unwatch("lobby", failing)
        presence.unwatch("lobby", watching)
        assert not presence._watchers


async def test_a_connection_without_a_user_is_one_of_its_own() -> None:
    async with two_processes() as two:
        presence = two.first.presence
        presence.join("lobby", "c1", "")
        presence.join("lobby", "c2", "")
        assert names(presence.snapshot("lobby")) == ["~c1", "~c2"]


async def test_what_is_too_much_is_refused_with_the_name_of_the_limit() -> None:
    limits = {"presence_info_bytes_max": 10, "presence_joins_max": 2, "presence_connections_max": 3}
    async with two_processes(**limits) as two:
        presence = two.first.presence
        with pytest.raises(LimitError, match="presence_info_bytes_max"):
            presence.join("lobby", "c1", "ann", b'"12345678901"')
        with pytest.raises(InvalidArgumentError, match="not JSON"):
            presence.join("lobby", "c1", "ann", b"{")
        with pytest.raises(InvalidArgumentError, match="255 bytes"):
            presence.join("lobby", "c1", "a" * 256)
        presence.join("a", "c1", "ann")
        presence.join("b", "c1", "ann")
        with pytest.raises(LimitError, match="presence_joins_max"):
            presence.join("c", "c1", "ann")
        presence.join("a", "c2", "bob")
        with pytest.raises(LimitError, match="presence_connections_max"):
            presence.join("a", "c3", "cyd")
        # It left no trace, and a place that is left can be taken.
        presence.gone("c1")
        presence.join("a", "c3", "cyd")
        assert set(presence._joins) == {"c2", "c3"}
