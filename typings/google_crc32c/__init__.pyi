# The package has no types. The compiled functions take `bytes` alone: no bytearray or memoryview.
from typing import Literal

implementation: Literal["c", "python"]

def value(chunk: bytes, /) -> int: ...
def extend(crc: int, chunk: bytes, /) -> int: ...
