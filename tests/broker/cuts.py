"""What a power cut leaves of a log with durability `os`: its files without their end."""

from __future__ import annotations

import os
from pathlib import Path

from fanlog.format.header import HEADER_BYTES, read_header


def cut_log(data: Path, topic: str, offset: int, partition: int = 0) -> None:
    """Cuts a topic's log at an offset, with which a batch begins. The broker is not running."""
    # The power failed: nobody has left the mark of a clean stop.
    (data / "clean").unlink(missing_ok=True)
    (folder,) = (data / "topics").glob(f"*-{topic}")
    for path in sorted((folder / str(partition)).glob("*.log")):
        if int(path.stem) >= offset > 0:
            path.unlink()
            continue
        content = path.read_bytes()
        at = 0
        while at + HEADER_BYTES <= len(content) and any(content[at : at + 4]):
            header = read_header(content, at)
            if header.base_offset >= offset:
                break
            at += header.length
        os.truncate(path, at)
