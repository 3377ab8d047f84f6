"""CRC-32C, the only checksum of batches, frames and files. The library wants `bytes`, so a view
is copied once: cheaper than any checksum that would take it as it is."""

from __future__ import annotations

import google_crc32c

_value = google_crc32c.value


def crc32c(data: bytes | bytearray | memoryview) -> int:
    if type(data) is bytes:
        return _value(data)
    return _value(bytes(data))
