"""The mark of a data folder, `<data>/cluster.json`: whose it is, and what its copy is worth.

Fields: `cluster_name`, `cluster_id`, `node`, `incarnation`, `boot_id`, `clean`, `state`,
`suspect`, `last_reign`, `seen` (the newest shard record, with its revision) and `etcd` (etcd's own
cluster id). It is a small file: JSON with a checksum, replaced whole and synced, with a copy beside
it.

Law: a mark never promises more than the folder has. `clean` is used up by the start that reads it.
A damaged mark is of a copy that is not whole, with a new incarnation; who the folder belongs to may
still come from the copy."""

from __future__ import annotations

import logging
import os
from typing import Any

import msgspec
from msgspec.structs import replace

from fanlog.cluster.records import SeenRecord, new_incarnation
from fanlog.cluster.views import Folder, KnownCluster
from fanlog.errors import FolderUnusableError, FormatError
from fanlog.log import small_files
from fanlog.log.cluster_mark import NAME
from fanlog.log.small_files import COPY_SUFFIX

logger = logging.getLogger("fanlog.cluster")

_STATES = (Folder.EMPTY, Folder.ADOPTING, Folder.WHOLE, Folder.COPYING, Folder.CUTTING)
# The folder has acknowledged nothing to anybody yet.
_BEFORE_THE_CLUSTER = (Folder.EMPTY, Folder.ADOPTING)


class FolderMark(msgspec.Struct, frozen=True, kw_only=True):
    """What a data folder knows about its part in a cluster."""

    cluster_name: str
    node: str
    incarnation: str
    cluster_id: str = ""
    boot_id: str = ""
    # The node stopped, and everything was synced before it did.
    clean: bool = False
    state: Folder = Folder.COPYING
    # The machine may have lost what was never synced, and nobody has looked for it yet.
    suspect: bool = False
    # The epoch of the last reign that this node began.
    last_reign: int = 0
    seen: SeenRecord | None = None
    etcd: str = ""

    @property
    def known(self) -> KnownCluster:
        """The part that decisions need."""
        return KnownCluster(
            cluster=self.cluster_id,
            node=self.node,
            etcd=self.etcd,
            seen=self.seen,
            last_reign=self.last_reign,
        )


def load_mark(folder: str) -> FolderMark | None:
    """The mark of a folder; None if it has none. One that is damaged counts as half copied, if its
    copy says whose it is. Raises FolderUnusableError if that does not say so either."""
    path = f"{folder}/{NAME}"
    try:
        return _read(path)
    except FileNotFoundError:
        if not os.path.exists(path + COPY_SUFFIX):
            return None
        logger.error("%s is gone, and its copy is there: this node's data is copied again", path)
    except FormatError as fault:
        aside = small_files.set_aside(path)
        logger.error("%s: this node's data is copied again. The file is now %s", fault, aside)
    try:
        return _suspicious(_read(path + COPY_SUFFIX))
    except (OSError, FormatError) as fault:
        raise FolderUnusableError(
            f"{path} is damaged, and so is its copy ({fault}): nobody knows which cluster this "
            "folder belongs to. Move it away, and begin with an empty folder."
        ) from fault


def save_mark(folder: str, mark: FolderMark) -> None:
    """Replaces the mark, durably. Raises OSError."""
    fields: dict[str, Any] = msgspec.to_builtins(mark)
    small_files.save(f"{folder}/{NAME}", fields, durable=True, copy=True)


def begin_with(mark: FolderMark, boot_id: str) -> FolderMark:
    """The mark with which a node starts. Save it before anything else is done: it is not clean any
    more, and has the incarnation of this start."""
    suspect = mark.suspect or not (mark.clean or _is_same_boot(mark, boot_id))
    return replace(
        mark,
        incarnation=inherit_or_new(mark, boot_id),
        boot_id=boot_id,
        clean=False,
        suspect=suspect,
    )


def inherit_or_new(mark: FolderMark, boot_id: str) -> str:
    """The incarnation of a start: the last one if the folder can't have lost anything, otherwise a
    new one. After a kill the machine must not have booted since: what was written is still in its
    page cache. A node that has acknowledged nothing has nothing to lose, and the first record may
    name it already."""
    if mark.state in _BEFORE_THE_CLUSTER:
        return mark.incarnation
    if mark.state is Folder.WHOLE and (mark.clean or _is_same_boot(mark, boot_id)):
        return mark.incarnation
    return new_incarnation(mark.node)


def _is_same_boot(mark: FolderMark, boot_id: str) -> bool:
    return bool(boot_id) and boot_id == mark.boot_id


def _read(path: str) -> FolderMark:
    fields, checked = small_files.load(path)
    if not checked:
        raise FormatError(f"{os.path.basename(path)} has no checksum")
    try:
        mark = msgspec.convert(fields, FolderMark)
    except msgspec.ValidationError as fault:
        raise FormatError(f"{os.path.basename(path)} can't be read: {fault}") from None
    if mark.state not in _STATES:
        raise FormatError(f"{os.path.basename(path)} says that the folder is {mark.state}")
    return mark


def _suspicious(copy: FolderMark) -> FolderMark:
    """What a copy is good for, which may be older than the mark was."""
    epochs = copy.last_reign, copy.seen.record.epoch if copy.seen else 0
    return replace(copy, state=Folder.COPYING, clean=False, boot_id="", last_reign=max(epochs))
