"""Compressed answers, for clients that ask for them. Small ones are not worth it; large ones are
compressed in a thread."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable

import zstandard
from aiohttp import web
from aiohttp.typedefs import Handler

# Below it a packet holds the answer as it is.
COMPRESS_BYTES_MIN = 1024
# Above it the loop would wait too long: about a millisecond.
_LOOP_BYTES_MAX = 32 * 1024
_TYPES = ("application/json", "application/problem+json", "text/", "image/svg+xml")
_ZLIB_LEVEL = 5
_GZIP_BITS = 31


def _gzip(data: bytes) -> bytes:
    return zlib.compress(data, _ZLIB_LEVEL, _GZIP_BITS)


def _deflate(data: bytes) -> bytes:
    return zlib.compress(data, _ZLIB_LEVEL)


def _zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


# The first that a client likes as much as any other is used.
_ENCODERS: dict[str, Callable[[bytes], bytes]] = {
    "zstd": _zstd,
    "gzip": _gzip,
    "deflate": _deflate,
}


def choose_encoding(accepted: str) -> str:
    """The encoding to use; empty for none.

    >>> choose_encoding("gzip, deflate, br, zstd")
    'zstd'
    >>> choose_encoding("gzip, zstd;q=0.5, *;q=0")
    'gzip'
    """
    weights: dict[str, float] = {}
    for part in accepted.lower().split(","):
        name, _, rest = part.partition(";")
        _, _, weight = rest.partition("q=")
        try:
            weights[name.strip()] = float(weight) if weight.strip() else 1.0
        except ValueError:
            weights[name.strip()] = 0.0
    other = weights.get("*", 0.0)
    best = max(_ENCODERS, key=lambda name: weights.get(name, other))
    return best if weights.get(best, other) > 0 else ""


@web.middleware
async def compress(request: web.Request, handler: Handler) -> web.StreamResponse:
    response = await handler(request)
    if not isinstance(response, web.Response) or not isinstance(response.body, bytes):
        return response
    data, headers = response.body, response.headers
    if len(data) < COMPRESS_BYTES_MIN or "Content-Encoding" in headers or response.prepared:
        return response
    if not response.content_type.startswith(_TYPES):
        return response
    vary = headers.get("Vary", "")
    if "accept-encoding" not in vary.lower():
        headers["Vary"] = f"{vary}, Accept-Encoding" if vary else "Accept-Encoding"
    encoding = choose_encoding(request.headers.get("Accept-Encoding", ""))
    if not encoding:
        return response
    encode = _ENCODERS[encoding]
    large = len(data) > _LOOP_BYTES_MAX
    response.body = await asyncio.to_thread(encode, data) if large else encode(data)
    headers["Content-Encoding"] = encoding
    return response
