"""Notes for the audit log, until they are written: which of them a level wants, and those that are
merged.

A peer that is refused a million times must not fill the disk. So refusals, failures and reads of
one kind by one peer are one note with a count. There are few of them for each peer: further names
share one note. When there are still too many, the notes are written less often.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from fanlog.broker.ports import AuditResult
from fanlog.identity import Identity
from fanlog.security.audit import AuditEntry, clean, show_time

# What only looks. The level `all` has it too.
READS = frozenset(
    {"login", "logout", "subscribe", "describe", "group", "queue", "presence", "audit.read"}
)
_LEVELS = {"off": 0, "changes": 1, "denials": 2, "all": 3}
# The most notes of one peer in one window, each about one name.
_NAMES_OF_PEER = 10
# A window is as long as notes are gathered. While some don't fit, it becomes longer.
_WINDOW_US = 1_000_000
_WINDOW_US_MAX = 60_000_000


def is_wanted(level: str, action: str, result: AuditResult) -> bool:
    """Whether a level has such a note."""
    if result == "denied" or (result == "failed" and action == "login"):
        return _LEVELS[level] >= _LEVELS["denials"]
    return _LEVELS[level] >= _LEVELS["all" if action in READS else "changes"]


class AuditedChange(NamedTuple):
    """One thing that was done, or tried."""

    time_us: int
    who: Identity
    action: str
    name: str
    result: AuditResult
    detail: str

    @property
    def merges(self) -> bool:
        """What has changed something has a record of its own."""
        return self.result != "ok" or self.action in READS


def entry_of(change: AuditedChange) -> AuditEntry:
    who = change.who
    account = who.account
    return AuditEntry(
        time=show_time(change.time_us),
        action=clean(change.action),
        result=change.result,
        name=clean(change.name),
        user=clean(who.user or ("" if account is None else account.name)),
        account="" if account is None else account.kind,
        key="" if account is None else clean(account.id),
        address=clean(who.address),
        listener=clean(who.listener),
        connection="" if who.connection == who.address else clean(who.connection),
        detail=clean(change.detail),
    )


def host_of(address: str) -> str:
    """An address without its port: a peer that comes again has another."""
    host, colon, port = address.rpartition(":")
    is_port = bool(colon) and port.isdecimal() and (":" not in host or host.endswith("]"))
    return host if is_port else address


class _AuditNote:
    __slots__ = ("change", "count", "until_us")

    def __init__(self, change: AuditedChange) -> None:
        self.change = change
        self.count = 0
        self.until_us = change.time_us

    def entry(self) -> AuditEntry:
        entry = entry_of(self.change)
        if self.count == 1:
            return entry
        # They need not have come over one connection.
        return msgspec.structs.replace(
            entry,
            address=host_of(entry.address),
            connection="",
            count=self.count,
            until=show_time(self.until_us),
        )


_Peer = tuple[str, str, str, str]


class Merged:
    """Notes of a window. `most` of them are about one name each."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._notes: dict[object, _AuditNote] = {}
        self._names: dict[_Peer, int] = {}
        self._full = False
        self._window_us = _WINDOW_US
        self._since_us: int | None = None
        self._written_us: int | None = None

    def add(self, change: AuditedChange, now_us: int) -> None:
        if self._since_us is None:
            self._since_us = now_us
        who, account = change.who, change.who.account
        id = "" if account is None else account.id
        peer = (who.user, id, host_of(who.address), who.listener)
        kind = (change.action, change.result)
        key: object = (peer, kind, change.name, change.detail)
        note = self._notes.get(key)
        if note is None:
            names = self._names.get(peer, 0)
            if names < _NAMES_OF_PEER and len(self._notes) < self.most:
                self._names[peer] = names + 1
                note = self._notes[key] = _AuditNote(change)
            else:
                note = self._shared(peer, kind, change)
        note.count += 1
        note.until_us = change.time_us

    def _shared(self, peer: _Peer, kind: tuple[str, str], change: AuditedChange) -> _AuditNote:
        """The note of a peer's further names, or, if there are too many peers, that of all."""
        self._full = True
        key: object = (peer, kind)
        note = self._notes.get(key)
        if note is None and len(self._notes) < 2 * self.most:
            shared = change._replace(name="", detail="further names")
            note = self._notes[key] = _AuditNote(shared)
        if note is None:
            key = kind
            note = self._notes.get(key)
        if note is None:
            nobody = Identity(listener=change.who.listener)
            shared = change._replace(who=nobody, name="", detail="further peers and names")
            note = self._notes[key] = _AuditNote(shared)
        return note

    def due(self, now_us: int) -> bool:
        """Whether the window has ended: at the earliest this time after the last one."""
        if self._since_us is None:
            return False
        begin_us = self._since_us if self._written_us is None else self._written_us
        return now_us - begin_us >= self._window_us

    def entries(self) -> list[AuditEntry]:
        return [note.entry() for note in self._notes.values()]

    def keep(self, written: int) -> None:
        """Forgets the first notes, which are written. The others stay, and are merged on."""
        for key in list(self._notes)[:written]:
            del self._notes[key]

    def clear(self, now_us: int) -> None:
        """All notes are written."""
        longer_us = min(2 * self._window_us, _WINDOW_US_MAX)
        self._window_us = longer_us if self._full else _WINDOW_US
        self._notes.clear()
        self._names.clear()
        self._full = False
        self._since_us = None
        self._written_us = now_us
