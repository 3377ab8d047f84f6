"""A client of etcd over its JSON gateway: `Coordination` as aiohttp and etcd 3.4 or later do it.

Law: a request that may have reached etcd is *unknown* until etcd answers. Every answer is bounded
in size and time. The requests are few (a read and a watch every ten seconds), so each has its own
connection: one that was closed meanwhile would make a swap's outcome unknown for nothing."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

import aiohttp

from fanlog.cluster import etcd_messages as messages
from fanlog.cluster.coordination import Listing, NotSent, Stored, SwapOutcome, Swapped, Unknown
from fanlog.cluster.etcd_address import EtcdAddress
from fanlog.cluster.etcd_lease import LeaseKeeper
from fanlog.cluster.etcd_messages import (
    ANSWER_BYTES_MAX,
    BadAnswerError,
    EtcdFault,
    FaultClass,
)
from fanlog.errors import CoordinationError, CoordinationRefusedError

logger = logging.getLogger("fanlog.cluster")

_WATCH_AGAIN_SECONDS = 0.25
_BEATS_A_LEASE = 12
# A line of a watch: the records of all nodes at once, far less than that.
_LINE_BYTES_MAX = 1024 * 1024


class _NotSentError(Exception):
    """Nothing of the request left this machine."""


class _NotNowError(Exception):
    """etcd may have seen the request, and has not done what it asks, or has not said so."""


class Etcd:
    """A connection to an etcd cluster. Use it on one event loop."""

    def __init__(self, address: EtcdAddress) -> None:
        """Raises ConfigError."""
        self._address = address.check()
        self._tls = self._address.tls()
        self._session: aiohttp.ClientSession | None = None
        self._keeper: LeaseKeeper | None = None
        self._beating: asyncio.Task[None] | None = None
        self._token = ""
        # Which member to ask first: the last one that answered.
        self._first = 0
        # The newest revision of any answer: a later listing below it says that etcd has gone back.
        self._revision = 0

    # Coordination

    async def read(self, key: str) -> Stored | None:
        listing = await self._list(messages.range_body(key))
        return listing.stored[0] if listing.stored else None

    async def read_prefix(self, prefix: str) -> Listing:
        return await self._list(messages.range_body(prefix, prefix=True))

    async def swap(self, key: str, expected: Stored | None, value: bytes) -> SwapOutcome:
        return await self._swap(messages.swap_body(key, expected, value))

    async def delete(self, key: str, expected: Stored) -> SwapOutcome:
        return await self._swap(messages.swap_body(key, expected, None))

    async def put_leased(self, key: str, value: bytes) -> None:
        if self._keeper is None:
            self._keeper = LeaseKeeper(self._address, self._tls)
            self._keeper.start()
            self._beating = asyncio.create_task(self._beat(self._keeper))
        self._keeper.put(key, value)

    async def watch(self, prefix: str) -> AsyncGenerator[Listing]:
        while True:
            first = await self.read_prefix(prefix)
            yield first
            async with aclosing(self._follow(prefix, first)) as following:
                async for listing in following:
                    yield listing

    async def close(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
            with suppress(asyncio.CancelledError):
                await self._beating
        if self._keeper is not None:
            await asyncio.to_thread(self._keeper.stop)
        if self._session is not None:
            await self._session.close()

    # Requests

    async def _list(self, body: bytes) -> Listing:
        floor = self._revision
        data = await self._ask(messages.RANGE, body)
        try:
            listing = messages.read_listing(data, floor)
        except BadAnswerError as fault:
            raise CoordinationError(f"etcd: {fault}.") from None
        if listing.has_gone_back:
            logger.error("etcd has gone back from revision %d to %d", floor, listing.revision)
            self._revision = listing.revision
        self._revision = max(self._revision, listing.revision)
        return listing

    async def _ask(self, path: str, body: bytes) -> bytes:
        """An answer to a request that may be repeated: of the first member that gives one."""
        faults: list[str] = []
        for endpoint in self._members():
            try:
                return await self._post(endpoint, path, body)
            except (_NotSentError, _NotNowError) as fault:
                faults.append(f"{endpoint}: {fault}")
                self._avoid(endpoint)
        raise CoordinationError(f"etcd does not answer now: {'; '.join(faults)}.")

    async def _swap(self, body: bytes) -> SwapOutcome:
        """Asks one member only, unless it could not be reached: who asks twice can't tell a race
        that it lost from one that it won."""
        faults: list[str] = []
        for endpoint in self._members():
            try:
                outcome = messages.read_swap(await self._post(endpoint, messages.TXN, body))
            except _NotSentError as fault:
                faults.append(f"{endpoint}: {fault}")
                self._avoid(endpoint)
            except (_NotNowError, BadAnswerError) as fault:
                self._avoid(endpoint)
                return Unknown(f"{endpoint}: {fault}")
            else:
                if isinstance(outcome, Swapped):
                    self._revision = max(self._revision, outcome.revision)
                return outcome
        return NotSent("; ".join(faults))

    async def _post(self, endpoint: str, path: str, body: bytes) -> bytes:
        """Raises _NotSentError, _NotNowError or CoordinationRefusedError."""
        for _ in range(2):
            if self._address.user and not self._token and path != messages.AUTHENTICATE:
                await self._log_in(endpoint)
            status, data = await self._exchange(endpoint, path, body)
            if status == 200:
                self._first = self._address.endpoints.index(endpoint)
                return data
            fault = messages.read_fault(status, data, has_login=bool(self._address.user))
            if fault.kind is FaultClass.OURS:
                raise CoordinationRefusedError(f"etcd at {endpoint} refuses: {fault.message}.")
            if fault.kind is not FaultClass.LOGIN or path == messages.AUTHENTICATE:
                raise _NotNowError(fault.message)
            self._token = ""
        raise _NotNowError("it does not take a token that it has just given")

    async def _log_in(self, endpoint: str) -> None:
        """Raises what `_post` does: nothing that matters has been sent yet."""
        body = messages.login_body(self._address.user, self._address.password)
        try:
            self._token = messages.read_token(
                await self._post(endpoint, messages.AUTHENTICATE, body)
            )
        except (_NotNowError, BadAnswerError) as fault:
            raise _NotSentError(f"login: {fault}") from None

    async def _exchange(self, endpoint: str, path: str, body: bytes) -> tuple[int, bytes]:
        seconds = self._address.request_seconds
        try:
            async with (
                asyncio.timeout(seconds),
                self._open().post(endpoint + path, data=body, headers=self._headers()) as response,
            ):
                parts: list[bytes] = []
                size = 0
                async for part in response.content.iter_any():
                    size += len(part)
                    if size > ANSWER_BYTES_MAX:
                        raise _NotNowError(f"an answer has more than {ANSWER_BYTES_MAX} bytes")
                    parts.append(part)
                return response.status, b"".join(parts)
        except aiohttp.ClientConnectorCertificateError as fault:
            raise CoordinationRefusedError(f"TLS with etcd at {endpoint} fails: {fault}.") from None
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as fault:
            raise _NotSentError(str(fault) or "no connection in time") from None
        except TimeoutError:
            raise _NotNowError(f"no answer within {seconds:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as fault:
            raise _NotNowError(str(fault) or type(fault).__name__) from None

    # Watches

    async def _follow(self, prefix: str, listing: Listing) -> AsyncGenerator[Listing]:
        """The listings after one, until the watch ends: list again then."""
        endpoint = self._members()[0]
        timeout = aiohttp.ClientTimeout(
            total=None,
            sock_connect=self._address.request_seconds,
            sock_read=self._address.watch_silence_seconds,
        )
        body = messages.watch_body(prefix, listing.revision + 1)
        headers = {**self._headers(), **messages.WATCH_HEADERS}
        try:
            async with self._open().post(
                endpoint + messages.WATCH,
                data=body,
                headers=headers,
                timeout=timeout,
                read_bufsize=_LINE_BYTES_MAX,
            ) as response:
                while line := await response.content.readline():
                    after = messages.read_watch(line, listing)
                    if isinstance(after, EtcdFault):
                        if after.message:
                            raise BadAnswerError(after.message)
                        return
                    if after is None:
                        continue
                    listing = after._replace(floor=self._revision)
                    self._revision = max(self._revision, listing.revision)
                    # A late event is no news: a listing or a swap was newer.
                    if not listing.has_gone_back:
                        yield listing
        except aiohttp.SocketTimeoutError:
            return
        except (aiohttp.ClientError, BadAnswerError, OSError, ValueError) as fault:
            logger.info("The watch at %s ended: %s", endpoint, fault)
            self._avoid(endpoint)
        # Whatever ends it at once would otherwise do so again and again.
        await asyncio.sleep(_WATCH_AGAIN_SECONDS)

    # The session

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._address.request_seconds)
            tls: ssl.SSLContext | bool = True if self._tls is None else self._tls
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(force_close=True, ssl=tls), timeout=timeout
            )
        return self._session

    def _headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = self._token
        return headers

    def _members(self) -> tuple[str, ...]:
        """All members, beginning with the one that answered last."""
        endpoints = self._address.endpoints
        return endpoints[self._first :] + endpoints[: self._first]

    def _avoid(self, endpoint: str) -> None:
        endpoints = self._address.endpoints
        if endpoints[self._first] == endpoint:
            self._first = (self._first + 1) % len(endpoints)

    async def _beat(self, keeper: LeaseKeeper) -> None:
        """Tells the thread of the lease that the event loop runs."""
        while True:
            keeper.beat()
            await asyncio.sleep(self._address.lease_seconds / _BEATS_A_LEASE)
