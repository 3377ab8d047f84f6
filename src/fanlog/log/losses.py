"""Notes beside the broker's own logs: where each log ended, and which records were lost.

| file                         | holds                                                            |
| ---------------------------- | ---------------------------------------------------------------- |
| `ledgers.json`               | `ends`: an offset by the name of the topic                       |
| `damaged/<name>/lost.json`   | a `Loss`; beside it are the files that were damaged              |

The ends are lower bounds: a log that ends before its own has lost something. A loss is reported
for as long as its folder is there.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

import msgspec

from fanlog.errors import FanlogError
from fanlog.log import small_files
from fanlog.log.files import sync_folder

logger = logging.getLogger("fanlog.log")

_DAMAGED = "damaged"
_NOTE = "lost.json"


class Loss(msgspec.Struct, frozen=True):
    """What one of the broker's own logs has lost, and what that means, as a sentence. Topics up
    to the number `newest_topic` were there when it was found out."""

    ledger: str
    sentence: str
    newest_topic: int = 0


def load_ends(folder: str) -> dict[str, int]:
    """How far each log went at least. Nothing if that is not known."""
    path = f"{folder}/ledgers.json"
    try:
        return msgspec.convert(small_files.load(path).fields["ends"], dict[str, int])
    except FileNotFoundError:
        return {}
    except (OSError, FanlogError, KeyError, msgspec.ValidationError) as fault:
        # Nothing is lost with it: the next one is written after this start.
        logger.warning("%s can't be used: %s", small_files.set_aside(path), fault)
        return {}


def save_ends(folder: str, ends: Mapping[str, int]) -> None:
    """Raises `OSError`."""
    small_files.save(f"{folder}/ledgers.json", {"ends": dict(ends)}, durable=True)


class LossNotes:
    """The folders under `damaged/`, each with a note of what was lost."""

    def __init__(self, folder: str) -> None:
        self._folder = f"{folder}/{_DAMAGED}"
        self._known: dict[str, Loss] = {}

    def load(self) -> None:
        try:
            names = sorted(os.listdir(self._folder))
        except FileNotFoundError:
            return
        except OSError as fault:
            logger.warning("%s can't be listed: %s", self._folder, fault)
            return
        for name in names:
            path = f"{self._folder}/{name}"
            try:
                fields = small_files.load(f"{path}/{_NOTE}").fields
                self._known[path] = msgspec.convert(fields, Loss)
            except (OSError, FanlogError, msgspec.ValidationError) as fault:
                # It is not a folder of the broker, or an operator has cleaned it up.
                logger.warning("%s: the note of lost records could not be written: %s", path, fault)

    def path_for(self, name: str) -> str:
        """Where what belongs to a new loss goes."""
        return f"{self._folder}/{name}"

    def add(self, path: str, loss: Loss) -> None:
        """Keeps a note. Where that fails it is known until the broker stops; raises `OSError`."""
        self._known[path] = loss
        os.makedirs(path, exist_ok=True)
        small_files.save(f"{path}/{_NOTE}", msgspec.structs.asdict(loss), durable=True)
        sync_folder(self._folder)
        sync_folder(os.path.dirname(self._folder))

    def current(self) -> list[Loss]:
        """The losses whose folder still exists: removing it clears them."""
        if not self._known:
            return []
        gone = [path for path in self._known if not os.path.exists(path)]
        for path in gone:
            del self._known[path]
        return list(self._known.values())
