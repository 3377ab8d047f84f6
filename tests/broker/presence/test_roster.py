"""Processes agree on who is where, whatever the network does to their signals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanlog.broker.presence.rooms import RoomLimits, Rooms
from fanlog.broker.presence.roster import Roster, RosterLimits
from fanlog.format.presence import (
    Beat,
    Bye,
    Delta,
    PresenceChange,
    PresenceMember,
    PresencePart,
    encode_signal,
)
from tests.broker.presence.simulation import Site, World

TOPICS = ["lobby", "room.1", "room.2"]


def check_agreement(world: World) -> None:
    for topic in TOPICS:
        for site in world.sites.values():
            assert site.users(topic) == world.truth(topic), (site.name, topic)
            connections = sum(at == topic for s in world.sites.values() for at, _ in s.own)
            assert site.rooms.connections(topic) == connections
            if topic in site.view:
                assert site.view[topic] == world.truth(topic)


def act(world: World) -> None:
    """Something happens to somebody."""
    random, sites = world.random, list(world.sites.values())
    site = random.choice(sites)
    topic = random.choice(TOPICS)
    what = random.random()
    if what < 0.5 or not site.own:
        connection = f"c{random.randrange(30)}"
        user = f"u{random.randrange(12)}"
        world.join(site, topic, connection, user, b'{"n":%d}' % random.randrange(3))
    elif what < 0.9:
        world.leave(site, *random.choice(list(site.own)))
    elif what < 0.92 and len(sites) > 2:
        world.kill(site.name)
    elif what < 0.94 and len(sites) > 2:
        world.stop(site.name)
    elif what < 0.96 and len(sites) < 8:
        world.start()
    elif what < 0.98:
        world.network.sides = {name: random.randrange(2) for name in world.sites}
    else:
        world.network.sides.clear()


@pytest.mark.parametrize("seed", range(12))
def test_all_processes_agree_once_the_network_is_well(seed: int) -> None:
    world = World(seed, 5)
    for site in world.sites.values():
        for topic in TOPICS:
            site.watch(topic)
    world.network.loss, world.network.repeat, world.network.late = 0.2, 0.2, 0.2
    for _ in range(150):
        act(world)
        world.run(world.random.choice([0.0, 0.1, 0.5]))
    world.settle()
    check_agreement(world)
    infos = {
        tuple(site.rooms.users(topic) or ()) for site in world.sites.values() for topic in ["lobby"]
    }
    assert len(infos) == 1, "processes show different info"


def two(grace_seconds: float = 2.0) -> tuple[World, Site, Site]:
    world = World(7, 2, rooms=RoomLimits(grace_seconds=grace_seconds))
    world.run(2)
    first, second = world.sites.values()
    for site in (first, second):
        site.watch("lobby")
    return world, first, second


def told(site: Site) -> list[tuple[list[str], list[str]]]:
    return [([p.user for p in change.joined], change.left) for change in site.changes]


def test_a_join_is_told_on_every_process() -> None:
    world, first, second = two()
    world.join(first, "lobby", "c1", "ann", b'{"name":"Ann"}')
    world.run(1)
    for site in (first, second):
        assert told(site) == [(["ann"], [])]
        assert site.changes[0].joined[0].info == b'{"name":"Ann"}'


def test_a_short_reconnect_is_not_told_whatever_process_it_ends_on() -> None:
    world, first, second = two()
    world.join(first, "lobby", "c1", "ann")
    world.run(1)
    world.leave(first, "lobby", "c1")
    world.run(1.5)
    assert second.rooms.count("lobby") == 1
    world.join(second, "lobby", "c2", "ann")
    world.run(10)
    assert told(first) == told(second) == [(["ann"], [])]
    assert second.rooms.connections("lobby") == 1


def test_a_leave_is_told_after_the_grace_time() -> None:
    world, first, second = two()
    world.join(first, "lobby", "c1", "ann")
    world.run(1)
    world.leave(first, "lobby", "c1")
    world.run(1.5)
    assert told(second) == [(["ann"], [])]
    world.run(1.5)
    assert told(first) == told(second) == [(["ann"], []), ([], ["ann"])]
    assert second.rooms.count("lobby") == 0


def test_a_user_who_goes_again_within_the_grace_time_gets_a_new_one() -> None:
    world, first, _ = two()
    for _ in range(5):
        world.join(first, "lobby", "c1", "ann")
        world.run(0.2)
        world.leave(first, "lobby", "c1")
        world.run(1.5)
    assert told(first) == [(["ann"], [])]
    world.run(1)
    assert told(first) == [(["ann"], []), ([], ["ann"])]


def test_a_second_connection_is_no_second_user() -> None:
    world, first, second = two()
    world.join(first, "lobby", "c1", "ann")
    world.join(second, "lobby", "c1", "ann")
    world.run(1)
    world.leave(first, "lobby", "c1")
    world.run(10)
    assert told(first) == told(second) == [(["ann"], [])]


def test_the_people_of_a_dead_process_leave_when_it_is_not_heard_of() -> None:
    world, first, second = two()
    world.join(first, "lobby", "c1", "ann")
    world.join(first, "lobby", "c2", "bob")
    world.run(1)
    world.kill(first.name)
    world.join(second, "lobby", "c9", "bob")  # he has come back here in time
    world.run(3)
    assert second.users("lobby") == {"ann", "bob"}
    world.run(3)
    assert told(second)[-1] == ([], ["ann"])
    assert second.users("lobby") == {"bob"}
    assert second.roster.processes == 1


def test_a_process_that_stops_gives_its_people_the_grace_time() -> None:
    world, first, second = two()
    world.join(first, "lobby", "c1", "ann")
    world.join(first, "lobby", "c2", "bob")
    world.run(1)
    world.stop(first.name)
    world.run(0.5)
    world.join(second, "lobby", "c1", "ann")
    world.run(3)
    assert told(second) == [(["ann", "bob"], []), ([], ["bob"])]


def test_a_process_that_comes_later_hears_of_everybody_soon() -> None:
    world, first, second = two()
    for n in range(500):
        world.join(first, "lobby", f"c{n}", f"u{n % 100}", b'"%d"' % n)
    world.run(1)
    late = world.start()
    world.run(1)
    assert late.users("lobby") == first.users("lobby") == second.users("lobby")
    assert late.rooms.connections("lobby") == 500
    assert (late.rooms.users("lobby") or [])[0].info == (first.rooms.users("lobby") or [])[0].info


def test_a_lost_delta_costs_that_delta_again_and_not_everything() -> None:
    world, first, second = two()
    for n in range(5000):
        world.join(first, "room.1", f"c{n}", f"u{n}")
    world.run(3)
    before = world.network.bytes
    world.network.loss = 1.0
    world.join(first, "lobby", "c1", "ann")
    world.run(0.1)
    world.network.loss = 0.0
    world.run(3)
    assert second.users("lobby") == {"ann"}
    assert world.network.bytes - before < 2000


def test_a_process_that_was_suspended_does_not_drop_the_others() -> None:
    world, first, second = two()
    world.join(first, "lobby", "c1", "ann")
    world.run(1)
    # Its clock has run, and it has not: what the others said meanwhile is not read yet.
    second.roster.tick(world.now + 60)
    second.rooms.tick(world.now + 60)
    assert second.users("lobby") == {"ann"}


def test_new_info_is_told_as_a_join_of_a_user_who_is_there() -> None:
    world, first, second = two()
    world.join(first, "lobby", "c1", "ann", b'{"typing":false}')
    world.run(1)
    world.join(first, "lobby", "c1", "ann", b'{"typing":true}')
    world.run(1)
    assert [p.info for change in second.changes for p in change.joined] == [
        b'{"typing":false}',
        b'{"typing":true}',
    ]
    assert second.rooms.connections("lobby") == 1


def test_the_newest_connection_says_what_a_user_is_doing() -> None:
    """By the order in which the processes heard of each other, not by clocks."""
    world, first, second = two()
    world.join(first, "lobby", "c1", "ann", b'"old"')
    world.run(1)
    world.join(second, "lobby", "c2", "ann", b'"new"')
    world.run(1)
    for site in (first, second):
        (ann,) = site.rooms.users("lobby") or []
        assert (ann.info, ann.connections) == (b'"new"', 2)
    world.leave(second, "lobby", "c2")
    world.run(1)
    assert (first.rooms.users("lobby") or [])[0].info == b'"old"'


def test_a_user_may_have_very_many_connections() -> None:
    """Guests who share a name: each of them costs the same, however many there are."""
    world, first, second = two()
    for n in range(20_000):
        world.join(first, "lobby", f"c{n}", "guest", b"%d" % n)
    world.run(3)
    (guest,) = second.rooms.users("lobby") or []
    assert (guest.connections, guest.info) == (20_000, b"19999")
    for n in reversed(range(1, 20_000)):
        world.leave(first, "lobby", f"c{n}")
    world.run(3)
    (guest,) = second.rooms.users("lobby") or []
    assert (guest.connections, guest.info) == (1, b"0")


def test_a_connection_that_changes_its_info_all_the_time_costs_no_memory() -> None:
    world, first, second = two()
    world.join(first, "lobby", "c1", "ann")
    for n in range(2000):
        world.join(first, "lobby", "c2", "ann", b"%d" % n)
    world.leave(first, "lobby", "c2")
    world.run(1)
    for site in (first, second):
        (ann,) = site.rooms.users("lobby") or []
        assert (ann.connections, ann.info) == (1, b"")
        assert len(site.rooms._rooms["lobby"].users["ann"]._newest) <= 20


def test_a_connection_that_becomes_another_user_leaves_as_the_first() -> None:
    world, first, second = two()
    world.join(first, "lobby", "c1", "guest")
    world.run(1)
    world.join(first, "lobby", "c1", "ann")
    world.run(4)
    assert told(second) == [(["guest"], []), (["ann"], []), ([], ["guest"])]


def test_a_large_room_is_told_as_a_count_now_and_then() -> None:
    limits = RoomLimits(grace_seconds=0.0, list_max=20, count_seconds=1.0)
    world = World(3, 2, rooms=limits)
    world.run(1)
    first, second = world.sites.values()
    second.watch("lobby")
    for n in range(100):
        world.join(first, "lobby", f"c{n}", f"u{n}")
        world.run(0.1)
    world.run(2)
    counted = [change for change in second.changes if not change.joined]
    assert len(counted) <= 12
    assert counted[-1].count == 100
    assert second.rooms.users("lobby") is None
    assert all(change.users is None and not change.left for change in counted)
    for n in range(90):
        world.leave(first, "lobby", f"c{n}")
        world.run(0.1)
    world.run(1)
    # It is a small room again: those who watch it get everybody once, and then changes.
    whole = [change for change in second.changes if change.users is not None]
    assert [len(change.users or ()) for change in whole] == [15]
    assert second.view["lobby"] == {f"u{n}" for n in range(90, 100)}
    assert second.changes[-1].left == ["u89"]


def test_a_room_at_the_limit_does_not_flap_between_list_and_count() -> None:
    world = World(3, 1, rooms=RoomLimits(grace_seconds=0.0, list_max=20, count_seconds=1.0))
    (site,) = world.sites.values()
    for n in range(21):
        world.join(site, "lobby", f"c{n}", f"u{n}")
    site.watch("lobby")
    for _ in range(50):
        world.leave(site, "lobby", "c0")
        world.run(0.1)
        world.join(site, "lobby", "c0", "u0")
        world.run(0.1)
    assert all(change.users is None for change in site.changes)


def test_nothing_is_remembered_of_rooms_that_are_empty() -> None:
    world, first, second = two()
    for n in range(200):
        world.join(first, f"t{n}", "c1", "ann")
    world.run(1)
    for n in range(200):
        world.leave(first, f"t{n}", "c1")
    world.run(4)
    for site in (first, second):
        site.rooms.unwatch("lobby")
        assert len(site.rooms) == 0
        assert site.rooms.size == 0


def test_what_there_is_no_room_for_is_left_out_and_counted() -> None:
    limits = RosterLimits(heartbeat_seconds=1.0, timeout_seconds=4.0, connections_max=50)
    world = World(1, 2, roster=limits)
    first, second = world.sites.values()
    for n in range(80):
        world.join(first, "lobby", f"c{n}", f"u{n}")
    world.run(3)
    assert second.rooms.size == 50
    assert second.roster.left_out == 30


def test_others_beyond_the_limit_of_processes_are_ignored() -> None:
    roster = Roster("me", Rooms(RoomLimits()), RosterLimits(processes_max=3), 0.0)
    for n in range(10):
        roster.hear(encode_signal(Beat(f"p{n}", 5)), 0.0)
    assert roster.processes == 4


def test_a_late_signal_does_not_bring_a_process_back_that_has_stopped() -> None:
    rooms = Rooms(RoomLimits(grace_seconds=0.0))
    roster = Roster("me", rooms, RosterLimits(), 0.0)
    joined = encode_signal(Delta("p", 1, [PresenceChange("t", "c", PresenceMember("ann"))]))
    roster.hear(joined, 0.0)
    assert rooms.count("t") == 1
    roster.hear(encode_signal(Bye("p")), 0.0)
    roster.hear(joined, 0.0)
    while roster.step():
        pass
    assert rooms.count("t") == 0
    assert roster.processes == 1


def test_info_that_is_no_json_or_too_long_is_left_out() -> None:
    rooms = Rooms(RoomLimits())
    roster = Roster("me", rooms, RosterLimits(info_bytes_max=10), 0.0)
    changes = [
        PresenceChange("t", "c1", PresenceMember("ann", b'"}, injected')),
        PresenceChange("t", "c2", PresenceMember("bob", b'"' + b"x" * 20 + b'"')),
        PresenceChange("t", "c3", PresenceMember("cyd", b'{"a":1}')),
    ]
    roster.hear(encode_signal(Delta("p", 1, changes)), 0.0)
    assert [present.info for present in rooms.users("t") or ()] == [b"", b"", b'{"a":1}']


def test_a_snapshot_with_parts_that_never_come_changes_nothing() -> None:
    rooms = Rooms(RoomLimits())
    roster = Roster("me", rooms, RosterLimits(), 0.0)
    part = PresencePart("p", 5, 0, 2, [PresenceChange("t", "c", PresenceMember("ann"))])
    roster.hear(encode_signal(part), 0.0)
    roster.hear(encode_signal(part), 0.0)
    assert rooms.count("t") == 0


@given(st.binary(max_size=200))
def test_garbage_is_ignored(data: bytes) -> None:
    roster = Roster("me", Rooms(RoomLimits()), RosterLimits(), 0.0)
    roster.hear(data, 0.0)
    roster.tick(1.0)
