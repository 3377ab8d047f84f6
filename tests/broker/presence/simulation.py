"""Many processes over a bus that loses, repeats, reorders and cuts off signals. Everything comes
from one seed, and time is handed in."""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field

from fanlog.broker.presence.rooms import RoomChange, RoomLimits, Rooms
from fanlog.broker.presence.roster import Roster, RosterLimits

TICK_SECONDS = 0.1


@dataclass
class Network:
    """`loss`, `repeat` and `late` are shares of all signals."""

    random: random.Random
    loss: float = 0.0
    repeat: float = 0.0
    late: float = 0.0
    delay_seconds: float = 0.02
    # Which side each process is on; signals do not pass from one to another.
    sides: dict[str, int] = field(default_factory=dict[str, int])
    signals: int = 0
    bytes: int = 0

    def __post_init__(self) -> None:
        self._queue: list[tuple[float, int, str, bytes]] = []

    def send(self, sender: str, receivers: list[str], data: bytes, now: float) -> None:
        self.signals += 1
        self.bytes += len(data)
        for name in receivers:
            if self.sides.get(sender, 0) != self.sides.get(name, 0):
                continue
            for _ in range(2 if self.random.random() < self.repeat else 1):
                if self.random.random() < self.loss:
                    continue
                delay = self.delay_seconds * self.random.random()
                if self.random.random() < self.late:
                    delay += self.random.random() * 3
                entry = (now + delay, self.random.getrandbits(60), name, data)
                heapq.heappush(self._queue, entry)

    def due(self, now: float) -> list[tuple[str, bytes]]:
        found: list[tuple[str, bytes]] = []
        while self._queue and self._queue[0][0] <= now:
            _, _, name, data = heapq.heappop(self._queue)
            found.append((name, data))
        return found


class Site:
    """One process. `changes` is what its watchers were told; `view` what they make of it."""

    def __init__(self, name: str, now: float, rooms: RoomLimits, roster: RosterLimits) -> None:
        self.name = name
        self.rooms = Rooms(rooms)
        self.roster = Roster(name, self.rooms, roster, now)
        self.own: dict[tuple[str, str], str] = {}
        self.changes: list[RoomChange] = []
        self.view: dict[str, set[str]] = {}

    def watch(self, topic: str) -> None:
        self.view[topic] = {present.user for present in self.rooms.users(topic) or ()}
        self.rooms.watch(topic)

    def told(self, change: RoomChange) -> None:
        self.changes.append(change)
        known = self.view[change.topic]
        if change.users is not None:
            known.clear()
            known.update(present.user for present in change.users)
        known.update(present.user for present in change.joined)
        assert known >= set(change.left), "somebody left who was not there"
        known.difference_update(change.left)

    def users(self, topic: str) -> set[str]:
        return {present.user for present in self.rooms.users(topic) or ()}


class World:
    def __init__(
        self,
        seed: int,
        processes: int,
        *,
        rooms: RoomLimits | None = None,
        roster: RosterLimits | None = None,
    ) -> None:
        self.random = random.Random(seed)
        self.network = Network(self.random)
        self.now = 1000.0 * self.random.random()
        self.room_limits = rooms or RoomLimits(grace_seconds=2.0)
        self.roster_limits = roster or RosterLimits(heartbeat_seconds=1.0, timeout_seconds=4.0)
        self.sites: dict[str, Site] = {}
        self._started = 0
        for _ in range(processes):
            self.start()

    def start(self) -> Site:
        self._started += 1
        name = f"p{self._started}"
        site = self.sites[name] = Site(name, self.now, self.room_limits, self.roster_limits)
        return site

    def kill(self, name: str) -> None:
        """It dies without a word."""
        del self.sites[name]

    def stop(self, name: str) -> None:
        site = self.sites.pop(name)
        site.roster.stop()
        for data in site.roster.take_signals():
            self.network.send(name, list(self.sites), data, self.now)

    def join(self, site: Site, topic: str, connection: str, user: str, info: bytes = b"") -> None:
        site.own[topic, connection] = user
        site.roster.join(topic, connection, user, info, self.now)

    def leave(self, site: Site, topic: str, connection: str) -> None:
        site.own.pop((topic, connection), None)
        site.roster.leave(topic, connection, self.now)

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / TICK_SECONDS)):
            self.now += TICK_SECONDS
            for name, data in self.network.due(self.now):
                site = self.sites.get(name)
                if site is not None:
                    site.roster.hear(data, self.now)
            for site in self.sites.values():
                site.roster.tick(self.now)
                # Not always all of it: other signals come in between.
                for _ in range(self.random.choice([0, 1, 1000])):
                    if not site.roster.step():
                        break
                site.rooms.tick(self.now)
                for change in site.rooms.take_changes(self.now):
                    site.told(change)
                for data in site.roster.take_signals():
                    # This process hears itself as well.
                    self.network.send(site.name, list(self.sites), data, self.now)

    def settle(self) -> None:
        """The network is well, and all have had time to hear of each other."""
        self.network.loss = self.network.repeat = self.network.late = 0.0
        self.network.sides.clear()
        self.run(4 + 4 + 2 + 4)

    def truth(self, topic: str) -> set[str]:
        return {
            user
            for site in self.sites.values()
            for (at, _), user in site.own.items()
            if at == topic
        }
