"""A disk that a power cut can hit: what programs see, and what would be left of it.

Law: only a sync makes anything durable. Syncing a file keeps its data and its size, and not its
name. Syncing a folder keeps the names in it, and not what they point at. A rename is atomic. A
cut leaves what was synced, and of the rest what its mode says, by a seed that repeats it.

| mode | unsynced names | unsynced data |
| --- | --- | --- |
| drop | gone | gone |
| random | some: the oldest of each folder, or any | some pages, some of them torn into sectors |
| names | all | gone: the file has its old size, or zeros up to its new one |
| data | gone | all |
| keep | all | all: as after `kill -9` |
| any | one of the first four, by the seed | |
"""

from __future__ import annotations

import errno
import os
import random
import time
from dataclasses import dataclass, field
from typing import Literal, NoReturn

Mode = Literal["drop", "random", "names", "data", "keep", "any"]
CUTS: tuple[Mode, ...] = ("drop", "random", "names", "data")

PAGE_BYTES = 4096
SECTOR_BYTES = 512


@dataclass(slots=True)
class Write:
    """Bytes that a program has written and not synced."""

    at: int
    data: bytes


@dataclass(slots=True)
class Resize:
    """A size that a program has given a file: by truncation, or ahead of use."""

    size: int


@dataclass(slots=True, eq=False)
class File:
    mode: int
    live: bytearray = field(default_factory=bytearray)
    kept: bytearray = field(default_factory=bytearray)
    pending: list[Write | Resize] = field(default_factory=list)
    modified_ns: int = field(default_factory=time.time_ns)


@dataclass(slots=True, eq=False)
class Folder:
    mode: int
    live: dict[str, Node] = field(default_factory=dict)
    kept: dict[str, Node] = field(default_factory=dict)
    pending: list[Naming] = field(default_factory=list)
    modified_ns: int = field(default_factory=time.time_ns)


Node = File | Folder


@dataclass(slots=True, eq=False)
class Naming:
    """Names that change together: what each stands for from then on, None for nothing."""

    number: int
    names: tuple[tuple[Folder, str, Node | None], ...]
    durable: bool = False


def fail(code: int) -> NoReturn:
    raise OSError(code, os.strerror(code))


class Disk:
    """Paths are relative to the disk, with slashes and none at the front."""

    def __init__(self, limit_bytes: int | None = None) -> None:
        self.root = Folder(0o755)
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._namings = 0

    # What programs do

    def find(self, path: str) -> Node:
        node: Node = self.root
        for name in path.split("/"):
            if not name:
                continue
            if not isinstance(node, Folder):
                fail(errno.ENOTDIR)
            found = node.live.get(name)
            if found is None:
                fail(errno.ENOENT)
            node = found
        return node

    def file(self, path: str) -> File:
        node = self.find(path)
        if isinstance(node, Folder):
            fail(errno.EISDIR)
        return node

    def folder(self, path: str) -> Folder:
        node = self.find(path)
        if isinstance(node, File):
            fail(errno.ENOTDIR)
        return node

    def create(self, path: str, mode: int = 0o644) -> File:
        made = File(mode)
        self._add(path, made)
        return made

    def make_folder(self, path: str, mode: int = 0o755) -> Folder:
        made = Folder(mode)
        self._add(path, made)
        return made

    def _add(self, path: str, node: Node) -> None:
        folder, name = self._parent(path)
        if name in folder.live:
            fail(errno.EEXIST)
        self._rename((folder, name, node))

    def unlink(self, path: str) -> None:
        file = self.file(path)
        self._rename((*self._parent(path), None))
        self._count(-len(file.live))

    def remove_folder(self, path: str) -> None:
        if self.folder(path).live:
            fail(errno.ENOTEMPTY)
        self._rename((*self._parent(path), None))

    def rename(self, old: str, new: str) -> None:
        node = self.find(old)
        source, target = self._parent(old), self._parent(new)
        replaced = target[0].live.get(target[1])
        if replaced is node:
            return
        if isinstance(replaced, Folder):
            if isinstance(node, File):
                fail(errno.EISDIR)
            if replaced.live:
                fail(errno.ENOTEMPTY)
        elif isinstance(replaced, File):
            if isinstance(node, Folder):
                fail(errno.ENOTDIR)
            self._count(-len(replaced.live))
        self._rename((*source, None), (*target, node))

    def _parent(self, path: str) -> tuple[Folder, str]:
        folder, _, name = path.strip("/").rpartition("/")
        return self.folder(folder), name

    def _rename(self, *names: tuple[Folder, str, Node | None]) -> None:
        self._namings += 1
        naming = Naming(self._namings, names)
        for folder, name, node in names:
            _point(folder.live, name, node)
            folder.modified_ns = time.time_ns()
        for folder in {id(folder): folder for folder, _, _ in names}.values():
            folder.pending.append(naming)

    def write(self, file: File, at: int, data: bytes) -> None:
        self._make_room(max(0, at + len(data) - len(file.live)))
        write = Write(at, data)
        _apply(file.live, write)
        file.pending.append(write)
        file.modified_ns = time.time_ns()

    def resize(self, file: File, size: int) -> None:
        self._make_room(size - len(file.live))
        _apply(file.live, Resize(size))
        file.pending.append(Resize(size))
        file.modified_ns = time.time_ns()

    def _make_room(self, size: int) -> None:
        if self.limit_bytes is not None and size > 0 and self.used_bytes + size > self.limit_bytes:
            fail(errno.ENOSPC)
        self._count(size)

    def _count(self, size: int) -> None:
        self.used_bytes += size

    # What a sync does

    def sync(self, node: Node) -> None:
        if isinstance(node, File):
            for change in node.pending:
                _apply(node.kept, change)
            node.pending.clear()
        else:
            _keep_names(node.pending)
            node.pending.clear()

    def forget_unsynced(self, node: Node) -> None:
        """What a kernel does whose write has failed: programs see it, and no sync brings it to the
        disk any more."""
        node.pending.clear()

    # What a power cut does

    def cut(self, mode: Mode, seed: int = 0) -> None:
        dice = random.Random(seed)
        if mode == "any":
            mode = dice.choice(CUTS)
        for node in self._everything():
            if isinstance(node, File):
                _keep_some_data(node, mode, dice)
        _keep_some_names(self._unsynced_names(), mode, dice)
        self.used_bytes = 0
        self._restart(self.root)

    def _everything(self) -> list[Node]:
        """All that has a name now, or that a cut could give one; in an order that repeats."""
        found: dict[int, Node] = {}
        waiting: list[Node] = [self.root]
        while waiting:
            node = waiting.pop()
            if id(node) in found:
                continue
            found[id(node)] = node
            if isinstance(node, Folder):
                waiting += node.live.values()
                waiting += node.kept.values()
                waiting += [n for p in node.pending for _, _, n in p.names if n is not None]
        return list(found.values())

    def _unsynced_names(self) -> list[list[Naming]]:
        """By folder."""
        return [node.pending for node in self._everything() if isinstance(node, Folder)]

    def _restart(self, folder: Folder) -> None:
        folder.live = dict(folder.kept)
        folder.pending = []
        for node in folder.live.values():
            if isinstance(node, Folder):
                self._restart(node)
            else:
                node.live = bytearray(node.kept)
                node.pending = []
                self.used_bytes += len(node.live)


def _point(names: dict[str, Node], name: str, node: Node | None) -> None:
    if node is None:
        names.pop(name, None)
    else:
        names[name] = node


def _apply(content: bytearray, change: Write | Resize) -> None:
    size = change.size if isinstance(change, Resize) else change.at + len(change.data)
    if size > len(content):
        content.extend(bytes(size - len(content)))
    if isinstance(change, Write):
        content[change.at : size] = change.data
    elif size < len(content):
        del content[size:]


def _keep_names(namings: list[Naming]) -> None:
    for naming in sorted(namings, key=lambda naming: naming.number):
        if not naming.durable:
            naming.durable = True
            for folder, name, node in naming.names:
                _point(folder.kept, name, node)


def _keep_some_names(by_folder: list[list[Naming]], mode: Mode, dice: random.Random) -> None:
    chosen: list[Naming] = []
    for namings in by_folder:
        if mode in ("names", "keep"):
            chosen += namings
        elif mode == "random":
            share = dice.choice((0.0, 0.5, 0.9, 1.0))
            if dice.random() < 0.5:
                chosen += namings[: dice.randint(0, len(namings))]
            else:
                chosen += [naming for naming in namings if dice.random() < share]
    _keep_names(chosen)


def _keep_some_data(file: File, mode: Mode, dice: random.Random) -> None:
    if mode in ("data", "keep"):
        changes = list(file.pending)
    elif mode == "random":
        changes = _some_of(file.pending, dice)
    else:
        changes = []
    for change in changes:
        _apply(file.kept, change)
    if mode == "names" or (mode == "random" and dice.random() < 0.3):
        grown = len(file.live) - len(file.kept)
        if grown > 0 and dice.random() < 0.5:
            file.kept.extend(bytes(grown))
    file.pending.clear()


def _some_of(pending: list[Write | Resize], dice: random.Random) -> list[Write | Resize]:
    """Pages that a kernel has happened to write by itself. Some are torn."""
    share = dice.choice((0.0, 0.1, 0.5, 0.9, 1.0))
    kept: list[Write | Resize] = []
    for change in pending:
        if isinstance(change, Resize):
            if dice.random() < share:
                kept.append(change)
            continue
        for piece in _pieces(change, PAGE_BYTES):
            if dice.random() >= share:
                continue
            if dice.random() < 0.1:
                kept += [s for s in _pieces(piece, SECTOR_BYTES) if dice.random() < 0.5]
            else:
                kept.append(piece)
    return kept


def _pieces(write: Write, size: int) -> list[Write]:
    """The write, cut where pages or sectors of the file end."""
    pieces: list[Write] = []
    at, end = write.at, write.at + len(write.data)
    while at < end:
        stop = min(end, at - at % size + size)
        pieces.append(Write(at, write.data[at - write.at : stop - write.at]))
        at = stop
    return pieces
