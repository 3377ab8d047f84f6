"""Requests to key sets and OpenID providers. Answers are limited in size and time, and redirects
are not followed: the addresses are the operator's own."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from fanlog.errors import LinkError

if TYPE_CHECKING:
    import aiohttp

logger = logging.getLogger("fanlog.security")

# A key set has a few KiB, and so has every other answer.
ANSWER_BYTES_MAX = 512 * 1024
TIMEOUT_SECONDS = 5.0
_decode = msgspec.json.Decoder(dict[str, Any]).decode


def problem_with_url(url: str) -> str:
    """What is wrong with an address, as the end of a sentence; empty if nothing is. Keys that come
    over a network without TLS are anybody's keys."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        _ = parts.port
    except ValueError:
        return "is not an address"
    if parts.scheme == "https" and host:
        return ""
    if parts.scheme == "http" and is_loopback(host):
        return ""
    return "must begin with https:// (http:// only for this machine)"


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Fetcher:
    """An HTTP client for a few small JSON documents."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def get(self, url: str, headers: Mapping[str, str] | None = None) -> dict[str, Any]:
        return await self._ask("GET", url, headers or {}, None)

    async def post(
        self, url: str, form: Mapping[str, str], headers: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        return await self._ask("POST", url, headers or {}, form)

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _ask(
        self, method: str, url: str, headers: Mapping[str, str], form: Mapping[str, str] | None
    ) -> dict[str, Any]:
        """The JSON object of an answer with status 200. Raises LinkError for everything else,
        without the request's content: a form may have secrets."""
        # It takes a while to import, and few brokers ask anybody.
        import aiohttp  # noqa: PLC0415

        wrong = problem_with_url(url)
        if wrong:
            raise LinkError(f"The address {_shown(url)} {wrong}.")
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=TIMEOUT_SECONDS),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=True,
            )
        try:
            async with self._session.request(
                method,
                url,
                data=None if form is None else dict(form),
                headers={"Accept": "application/json", **headers},
                allow_redirects=False,
            ) as answer:
                data = await _read(answer.content)
                status = answer.status
        except (
            aiohttp.ClientError,
            TimeoutError,
            OSError,
            ValueError,
        ) as fault:
            raise LinkError(
                f"{_shown(url)} did not answer: {type(fault).__name__}. Check the address, and "
                "whether this machine can reach it."
            ) from None
        return _object(url, status, data)


async def _read(content: aiohttp.StreamReader) -> bytes:
    """The body, up to the limit. Unpacked bytes count, so a small body can't unpack to a large
    one."""
    data = bytearray()
    async for chunk in content.iter_chunked(64 * 1024):
        data += chunk
        if len(data) > ANSWER_BYTES_MAX:
            raise ValueError("too large")
    return bytes(data)


def _object(url: str, status: int, data: bytes) -> dict[str, Any]:
    try:
        found = _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        found = None
    if status != 200:
        why = "" if found is None else f": {_word(found.get('error'))}"
        raise LinkError(f"{_shown(url)} answered with status {status}{why}.")
    if found is None:
        raise LinkError(f"{_shown(url)} did not answer with a JSON object.")
    return found


def _word(error: object) -> str:
    """The code of an OAuth error; nothing that could be an attack on a log."""
    text = error if isinstance(error, str) else "unknown"
    return text if text.replace("_", "").isalnum() and len(text) < 64 else "unknown"


def _shown(url: str) -> str:
    """An address without its user, password and query, which may be secrets."""
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
        return f"{parts.scheme}://{parts.hostname}{port}{parts.path}"[:200]
    except ValueError:
        return "the address"
