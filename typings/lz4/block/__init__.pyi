from typing import Literal

from typing_extensions import Buffer

class LZ4BlockError(Exception): ...

def compress(
    source: Buffer,
    mode: Literal["default", "fast", "high_compression"] = "default",
    acceleration: int = 1,
    compression: int = 0,
    store_size: bool = True,
) -> bytes: ...
def decompress(source: Buffer, uncompressed_size: int = -1) -> bytes: ...
