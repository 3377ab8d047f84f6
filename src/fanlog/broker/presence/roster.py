"""One process's knowledge of all processes' connections in topics. It does no I/O: signals of
others go in by `hear`, its own come out of `take_signals`, and time is handed in.

Each process owns its own connections, and nobody else changes them. It counts its changes in
versions. A process that misses a version asks for it: the owner sends the changes since then if it
still has them, and otherwise everything, in parts. All processes receive the answer, so one answer
is enough. A process that is silent for a while is dropped with its users.

What grows with the number of connections is done in steps of about a millisecond: `step` does one,
and says whether there are more.

It is long because a version, its changes and the answers about it are one state machine.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from fanlog.broker.presence.rooms import Rooms
from fanlog.errors import FormatError
from fanlog.format.presence import (
    Beat,
    Bye,
    Delta,
    PresenceAsk,
    PresenceChange,
    PresenceMember,
    PresencePart,
    Signal,
    change_bytes,
    decode_signal,
    encode_signal,
    is_info,
)

logger = logging.getLogger("fanlog.presence")

# Deltas that came too early, of one process: what they wait for has been asked for.
_EARLY_MAX = 64
# Deltas that are kept for those who ask.
_KEPT_MAX = 64
# Connections in one part of a snapshot, and connections that are put or taken in one step.
_PART_CONNECTIONS = 64
_DONE = object()
# Processes that have said goodbye, so that a late signal does not bring them back.
_ENDED_MAX = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class RosterLimits:
    heartbeat_seconds: float = 5.0
    timeout_seconds: float = 15.0
    connections_max: int = 200_000
    processes_max: int = 1000
    signal_bytes_max: int = 32 * 1024
    info_bytes_max: int = 1024


class _Process:
    """Another process: its members at `version`, and its changes that are still to come."""

    __slots__ = (
        "applying",
        "asked_at",
        "early",
        "heard_at",
        "members",
        "parts",
        "parts_version",
        "version",
    )

    def __init__(self, now: float) -> None:
        # Whether a snapshot is being taken in.
        self.applying = False
        self.heard_at = now
        self.asked_at = float("-inf")
        self.version = -1
        self.members: dict[tuple[str, str], PresenceMember] = {}
        self.early: dict[int, Delta] = {}
        self.parts: dict[int, list[PresenceChange]] = {}
        self.parts_version = -1


class Roster:
    def __init__(self, process: str, rooms: Rooms, limits: RosterLimits, now: float) -> None:
        self.process = process
        self._rooms = rooms
        self._limits = limits
        self._own: dict[tuple[str, str], PresenceMember] = {}
        self._version = 0
        self._order = 0
        self._changes: list[PresenceChange] = []
        self._kept: deque[Delta] = deque(maxlen=_KEPT_MAX)
        self._others: dict[str, _Process] = {}
        self._ended: dict[str, None] = {}
        self._out: list[bytes] = []
        # What is done in steps.
        self._work: deque[Iterator[None]] = deque()
        self._telling_all = False
        # The lowest version that somebody has and asked about; None: nobody has.
        self._wanted: int | None = None
        self._all_sent_at = float("-inf")
        self._beat_at = float("-inf")
        self._ticked_at = now
        self._hello = True
        # Connections of other processes that this process had no room for.
        self.left_out = 0

    @property
    def processes(self) -> int:
        """Processes that are known, this one too."""
        return len(self._others) + 1

    def names(self) -> list[str]:
        """Their names."""
        return [self.process, *self._others]

    # This process's own connections

    def join(self, topic: str, connection: str, user: str, info: bytes, now: float) -> None:
        self._order += 1
        member = PresenceMember(user, info, self._order)
        key = (topic, connection)
        known = self._own.get(key)
        if known is not None and known.user != user:
            self.leave(topic, connection, now)
        self._own[key] = member
        self._rooms.put(topic, (self.process, connection), member)
        self._changes.append(PresenceChange(topic, connection, member))

    def leave(self, topic: str, connection: str, now: float) -> None:
        member = self._own.pop((topic, connection), None)
        if member is not None:
            connection_key = (self.process, connection)
            self._rooms.take(topic, connection_key, member.user, now, at_once=False)
            self._changes.append(PresenceChange(topic, connection))

    def stop(self) -> None:
        """Says goodbye, so that the others need not wait until this process times out."""
        self._flush()
        self._out.append(encode_signal(Bye(self.process)))

    def rejoin(self) -> None:
        """The connection to the other processes was lost, and is back."""
        self._hello = True
        self._beat_at = float("-inf")

    # What goes out

    def tick(self, now: float) -> None:
        """Sends what is due, and drops silent processes. The caller runs this several times a
        second."""
        self._forgive(now)
        self._flush()
        self._answer(now)
        limits = self._limits
        if now - self._beat_at >= limits.heartbeat_seconds:
            self._beat_at = now
            self._out.append(encode_signal(Beat(self.process, self._version, self._hello)))
            self._hello = False
        for name, process in list(self._others.items()):
            if now - process.heard_at > limits.timeout_seconds:
                logger.info("process %s sends no heartbeats any more", name)
                self._drop(name, now, at_once=limits.timeout_seconds >= self._rooms.grace_seconds)

    def _forgive(self, now: float) -> None:
        """Time in which this process did not run is not the others' silence."""
        stalled = now - self._ticked_at - self._limits.heartbeat_seconds
        self._ticked_at = now
        if stalled > 0:
            for process in self._others.values():
                process.heard_at += stalled

    def _flush(self) -> None:
        """The changes since the last tick, as few signals as they fit into."""
        changes, self._changes = self._changes, []
        for some in _split(changes, self._limits.signal_bytes_max):
            self._version += 1
            delta = Delta(self.process, self._version, some)
            self._kept.append(delta)
            self._out.append(encode_signal(delta))

    def _answer(self, now: float) -> None:
        """Sends again what others have missed."""
        wanted, oldest = self._wanted, self._kept[0].version if self._kept else self._version + 1
        if wanted is None:
            return
        if wanted >= oldest - 1:
            self._wanted = None
            self._out += [encode_signal(delta) for delta in self._kept if delta.version > wanted]
        elif (
            not self._telling_all and now - self._all_sent_at >= self._limits.heartbeat_seconds / 4
        ):
            self._wanted = None
            self._all_sent_at = now
            self._telling_all = True
            self._work.append(self._tell_all(self._version, list(self._own.items())))

    def _tell_all(
        self, version: int, everything: list[tuple[tuple[str, str], PresenceMember]]
    ) -> Iterator[None]:
        """Sends all connections, as they were at a version, in parts."""
        parts = max(1, -(-len(everything) // _PART_CONNECTIONS))
        for index in range(parts):
            at = index * _PART_CONNECTIONS
            some = everything[at : at + _PART_CONNECTIONS]
            changes = [PresenceChange(topic, id, member) for (topic, id), member in some]
            self._out.append(
                encode_signal(PresencePart(self.process, version, index, parts, changes))
            )
            yield
        self._telling_all = False

    def step(self) -> bool:
        """Does one step of the waiting work. True if there is more."""
        if self._work:
            work = self._work[0]
            if next(work, _DONE) is _DONE:
                self._work.popleft()
        return bool(self._work)

    def take_signals(self) -> list[bytes]:
        """What to send to all others."""
        out, self._out = self._out, []
        return out

    # What comes in

    def hear(self, data: bytes, now: float) -> None:
        try:
            signal = decode_signal(data)
        except FormatError as fault:
            logger.debug("%s", fault)
            return
        name = signal.process
        if name == self.process or name in self._ended:
            return
        if isinstance(signal, Bye):
            self._end(name, now)
            return
        process = self._others.get(name)
        if process is None:
            if len(self._others) >= self._limits.processes_max:
                return
            process = self._others[name] = _Process(now)
        process.heard_at = now
        self._take(name, process, signal, now)

    def _take(self, name: str, process: _Process, signal: Signal, now: float) -> None:
        if isinstance(signal, PresenceAsk):
            if signal.of == self.process:
                known = self._wanted
                self._wanted = signal.version if known is None else min(known, signal.version)
        elif isinstance(signal, Beat):
            if signal.hello:
                # It knows nothing yet: it hears of us at once, and asks for the rest.
                self._beat_at = float("-inf")
            if not signal.version and process.version < 0:
                process.version = 0
            if signal.version > process.version and not process.applying:
                self._ask(name, process, now)
        elif isinstance(signal, Delta):
            self._take_delta(name, process, signal, now)
        elif isinstance(signal, PresencePart):
            self._take_part(name, process, signal, now)

    def _ask(self, name: str, process: _Process, now: float) -> None:
        """Asks for what is missing, but not with every signal that shows it."""
        if now - process.asked_at >= self._limits.heartbeat_seconds / 4:
            process.asked_at = now
            self._out.append(encode_signal(PresenceAsk(self.process, name, process.version)))

    def _take_delta(self, name: str, process: _Process, delta: Delta, now: float) -> None:
        if delta.version <= process.version:
            return
        if process.version < 0 and delta.version == 1:
            process.version = 0
        if delta.version == process.version + 1 and not process.applying:
            self._apply(name, process, delta, now)
            self._catch_up(name, process, now)
            return
        if len(process.early) < _EARLY_MAX:
            process.early[delta.version] = delta
        if not process.applying:
            self._ask(name, process, now)

    def _catch_up(self, name: str, process: _Process, now: float) -> None:
        """Applies deltas that came too early, as far as it is their turn."""
        early = process.early
        while (delta := early.pop(process.version + 1, None)) is not None:
            self._apply(name, process, delta, now)
        for version in [version for version in early if version <= process.version]:
            del early[version]

    def _apply(self, name: str, process: _Process, delta: Delta, now: float) -> None:
        process.version = delta.version
        for change in delta.changes:
            self._change(name, process, change, now)

    def _change(self, name: str, process: _Process, change: PresenceChange, now: float) -> None:
        key = (change.topic, change.connection)
        connection_key = (name, change.connection)
        known, member = process.members.get(key), change.member
        if known is not None and (member is None or member.user != known.user):
            del process.members[key]
            self._rooms.take(change.topic, connection_key, known.user, now, at_once=False)
        if member is None:
            return
        if key not in process.members and self._rooms.size >= self._limits.connections_max:
            self.left_out += 1
            return
        self._order = max(self._order, member.order)
        if not is_info(member.info, self._limits.info_bytes_max):
            member = PresenceMember(member.user, b"", member.order)
        process.members[key] = member
        self._rooms.put(change.topic, connection_key, member)

    def _take_part(self, name: str, process: _Process, part: PresencePart, now: float) -> None:
        if part.version <= process.version or part.version < process.parts_version:
            return
        if process.applying:
            # What comes with it is not much newer, and this process asks for the rest.
            process.asked_at = now
            return
        if part.version > process.parts_version:
            process.parts_version = part.version
            process.parts = {}
        process.parts[part.index] = part.changes
        if len(process.parts) < part.parts:
            # The rest is on its way: there is no need to ask for it.
            process.asked_at = now
            return
        parts, process.parts = process.parts, {}
        process.applying = True
        self._work.append(self._apply_all(name, process, part.version, parts, now))

    def _apply_all(
        self,
        name: str,
        process: _Process,
        version: int,
        parts: dict[int, list[PresenceChange]],
        now: float,
    ) -> Iterator[None]:
        """Replaces the state of a process with a snapshot. Deltas wait meanwhile."""
        there: set[tuple[str, str]] = set()
        for index in sorted(parts):
            if self._others.get(name) is not process:
                return
            for change in parts[index]:
                key = (change.topic, change.connection)
                there.add(key)
                if process.members.get(key) != change.member:
                    self._change(name, process, change, now)
            yield
        for count, key in enumerate([key for key in process.members if key not in there]):
            if self._others.get(name) is not process:
                return
            self._change(name, process, PresenceChange(*key), now)
            if count % _PART_CONNECTIONS == 0:
                yield
        process.applying = False
        process.version = version
        self._catch_up(name, process, now)

    def _end(self, name: str, now: float) -> None:
        """A process has stopped. Its users have the grace time to reconnect elsewhere."""
        self._ended[name] = None
        if len(self._ended) > _ENDED_MAX:
            del self._ended[next(iter(self._ended))]
        if name in self._others:
            self._drop(name, now, at_once=False)

    def _drop(self, name: str, now: float, *, at_once: bool) -> None:
        process = self._others.pop(name)
        self._work.append(self._take_out(name, process, now, at_once=at_once))

    def _take_out(
        self, name: str, process: _Process, now: float, *, at_once: bool
    ) -> Iterator[None]:
        """Removes the connections of a lost process from their rooms."""
        for count, (key, member) in enumerate(process.members.items()):
            again = self._others.get(name)
            back = None if again is None else again.members.get(key)
            # The process may have sent something again meanwhile, with the same connection.
            if back is None or back.user != member.user:
                self._rooms.take(key[0], (name, key[1]), member.user, now, at_once=at_once)
            if count % _PART_CONNECTIONS == 0:
                yield


def _split(changes: list[PresenceChange], bytes_max: int) -> list[list[PresenceChange]]:
    """Changes in stretches that fit into a signal each."""
    stretches: list[list[PresenceChange]] = []
    room = 0
    for change in changes:
        size = change_bytes(change)
        if size > room:
            stretches.append([])
            room = bytes_max
        stretches[-1].append(change)
        room -= size
    return stretches
