"""Rooms: the users who are present in each topic, over all processes, and the notifications for
watchers.

A user is in a room while one of its connections is, on whatever process, and for the grace time
after the last one has gone: a page that reloads neither leaves nor joins. A watcher gets the
difference between what it knows and the current state, so that users who came and left in between
cost nothing. Time is handed in.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from fanlog.format.presence import PresenceMember

# Users who leave in one tick. Of very many the others leave with the next ones.
_LEAVES_A_TICK = 2000
# A connection: its process, and its id there.
ConnectionKey = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomLimits:
    """For rooms with more users than `list_max`, watchers get only a count, at most every
    `count_seconds`."""

    grace_seconds: float = 10.0
    list_max: int = 200
    count_seconds: float = 2.0


@dataclass(frozen=True, slots=True)
class RoomUser:
    """A user in a room. `connections` 0: the last one has gone a moment ago."""

    user: str
    connections: int
    info: bytes


@dataclass(frozen=True, slots=True)
class RoomSize:
    """The number of users in a room."""

    topic: str
    users: int
    connections: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomChange:
    """The notification for watchers of a room. With `users`, it lists all users who are present."""

    topic: str
    count: int
    joined: list[RoomUser] = field(default_factory=list["RoomUser"])
    left: list[str] = field(default_factory=list["str"])
    users: list[RoomUser] | None = None


class _User:
    """One user in one room. The newest connection's info is the user's, and stays known when the
    last one has gone. A user may have very many: guests who share a name."""

    __slots__ = ("_newest", "absent_since", "info", "members")

    def __init__(self) -> None:
        self.members: dict[ConnectionKey, PresenceMember] = {}
        self.info = b""
        self.absent_since: float | None = None
        # A heap with the newest in front. Of those that have gone or changed, some are still in it.
        self._newest: list[tuple[int, ConnectionKey]] = []

    def put(self, key: ConnectionKey, member: PresenceMember) -> None:
        self.members[key] = member
        heapq.heappush(self._newest, (-member.order, key))
        if len(self._newest) > 2 * len(self.members) + 16:
            self._newest = [(-known.order, at) for at, known in self.members.items()]
            heapq.heapify(self._newest)
        self._settle()

    def take(self, key: ConnectionKey) -> bool:
        if self.members.pop(key, None) is None:
            return False
        self._settle()
        return True

    def _settle(self) -> None:
        while self.members:
            order, key = self._newest[0]
            member = self.members.get(key)
            if member is not None and member.order == -order:
                self.info = member.info
                return
            heapq.heappop(self._newest)
        self._newest.clear()


class _Room:
    __slots__ = (
        "announced",
        "announced_count",
        "connections",
        "counted_at",
        "dirty",
        "large",
        "users",
    )

    def __init__(self) -> None:
        self.users: dict[str, _User] = {}
        self.connections = 0
        # What watchers know: each user's info. None: nobody watches.
        self.announced: dict[str, bytes] | None = None
        self.announced_count = 0
        self.dirty: set[str] = set()
        self.large = False
        self.counted_at = float("-inf")


class Rooms:
    """All rooms that one process knows of."""

    def __init__(self, limits: RoomLimits) -> None:
        self._limits = limits
        self.grace_seconds = limits.grace_seconds
        self._rooms: dict[str, _Room] = {}
        self._dirty: dict[str, None] = {}
        # Users without a connection, in the order in which their grace ends.
        self._absent: deque[tuple[float, str, str]] = deque()
        # Connections in rooms, in all.
        self.size = 0

    # Who comes and goes

    def put(self, topic: str, key: ConnectionKey, member: PresenceMember) -> None:
        room = self._rooms.get(topic)
        if room is None:
            room = self._rooms[topic] = _Room()
        user = room.users.get(member.user)
        if user is None:
            user = room.users[member.user] = _User()
        if key not in user.members:
            room.connections += 1
            self.size += 1
        user.put(key, member)
        user.absent_since = None
        self._note(topic, room, member.user)

    def take(self, topic: str, key: ConnectionKey, name: str, now: float, *, at_once: bool) -> None:
        """A connection of a user has gone. `at_once`: it has been gone for longer than the grace
        time, for all that is known."""
        room = self._rooms.get(topic)
        user = None if room is None else room.users.get(name)
        if room is None or user is None or not user.take(key):
            return
        room.connections -= 1
        self.size -= 1
        if not user.members:
            if at_once or not self._limits.grace_seconds:
                self._remove(topic, room, name)
                return
            user.absent_since = now
            self._absent.append((now + self._limits.grace_seconds, topic, name))
        self._note(topic, room, name)

    def tick(self, now: float) -> None:
        """Removes users who did not return in time."""
        absent = self._absent
        for _ in range(_LEAVES_A_TICK):
            if not absent or absent[0][0] > now:
                return
            _, topic, name = absent.popleft()
            room = self._rooms.get(topic)
            user = None if room is None else room.users.get(name)
            if room is None or user is None or user.absent_since is None:
                continue
            # It may have come and gone again since.
            if user.absent_since + self._limits.grace_seconds <= now:
                self._remove(topic, room, name)

    def _remove(self, topic: str, room: _Room, name: str) -> None:
        del room.users[name]
        self._note(topic, room, name)
        if not room.users and room.announced is None:
            self._rooms.pop(topic, None)
            self._dirty.pop(topic, None)

    def _note(self, topic: str, room: _Room, name: str) -> None:
        if room.announced is not None:
            room.dirty.add(name)
            self._dirty[topic] = None

    # Watchers

    def watch(self, topic: str) -> None:
        """A watcher has asked who is present, and gets changes from now on."""
        room = self._rooms.get(topic)
        if room is None:
            room = self._rooms[topic] = _Room()
        if room.announced is None:
            room.large = len(room.users) > self._limits.list_max
            self._tell_all(room)

    def unwatch(self, topic: str) -> None:
        """The last watcher has left."""
        room = self._rooms.get(topic)
        if room is None:
            return
        room.announced = None
        room.dirty.clear()
        self._dirty.pop(topic, None)
        if not room.users:
            del self._rooms[topic]

    def _tell_all(self, room: _Room) -> None:
        room.announced = {} if room.large else {name: u.info for name, u in room.users.items()}
        room.announced_count = len(room.users)
        room.dirty.clear()

    def take_changes(self, now: float) -> list[RoomChange]:
        """The notifications for watchers."""
        changes: list[RoomChange] = []
        later: dict[str, None] = {}
        for topic in self._dirty:
            room = self._rooms[topic]
            self._turn_size(room)
            if room.large and now - room.counted_at < self._limits.count_seconds:
                later[topic] = None
                continue
            change = self._counted(topic, room, now) if room.large else self._listed(topic, room)
            if change is not None:
                changes.append(change)
        self._dirty = later
        return changes

    def _turn_size(self, room: _Room) -> None:
        """A large room is a small one again only when it is a good deal smaller."""
        most = self._limits.list_max
        if not room.large and len(room.users) > most:
            room.large = True
            room.announced = {}
        elif room.large and len(room.users) <= most * 3 // 4:
            room.large = False
            # `_listed` then tells everybody.
            room.announced_count = -1

    def _counted(self, topic: str, room: _Room, now: float) -> RoomChange | None:
        room.dirty.clear()
        count = len(room.users)
        if count == room.announced_count:
            return None
        room.announced_count = count
        room.counted_at = now
        return RoomChange(topic=topic, count=count)

    def _listed(self, topic: str, room: _Room) -> RoomChange | None:
        count = len(room.users)
        if room.announced_count < 0:
            self._tell_all(room)
            return RoomChange(topic=topic, count=count, users=_list(room))
        announced = room.announced if room.announced is not None else {}
        joined: list[RoomUser] = []
        left: list[str] = []
        for name in sorted(room.dirty):
            user = room.users.get(name)
            if user is None:
                if announced.pop(name, None) is not None:
                    left.append(name)
            elif announced.get(name) != user.info:
                announced[name] = user.info
                joined.append(RoomUser(name, len(user.members), user.info))
        room.dirty.clear()
        room.announced_count = count
        if not joined and not left:
            return None
        return RoomChange(topic=topic, count=count, joined=joined, left=left)

    # What there is

    def count(self, topic: str) -> int:
        room = self._rooms.get(topic)
        return 0 if room is None else len(room.users)

    def connections(self, topic: str) -> int:
        room = self._rooms.get(topic)
        return 0 if room is None else room.connections

    def users(self, topic: str) -> list[RoomUser] | None:
        """The users who are present, by name; None if they are too many to list."""
        room = self._rooms.get(topic)
        if room is None:
            return []
        # Its watchers get changes only while it is small.
        large = room.large if room.announced is not None else False
        return None if large or len(room.users) > self._limits.list_max else _list(room)

    def sizes(self) -> Iterator[RoomSize]:
        """Each room with somebody in it. Others may come and go between two of them."""
        for topic in list(self._rooms):
            room = self._rooms.get(topic)
            if room is not None and room.users:
                yield RoomSize(topic, len(room.users), room.connections)

    def __len__(self) -> int:
        return len(self._rooms)


def _list(room: _Room) -> list[RoomUser]:
    users = room.users
    return [RoomUser(name, len(users[name].members), users[name].info) for name in sorted(users)]
