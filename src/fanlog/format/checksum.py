"""CRC-32C, the only checksum of batches, frames and files. The library needs `bytes`, so a view is
copied once, which is still cheaper than a checksum that takes views."""

from __future__ import annotations

import google_crc32c

_value = google_crc32c.value


def crc32c(data: bytes | bytearray | memoryview) -> int:
    if type(data) is bytes:
        return _value(data)
    return _value(bytes(data))
