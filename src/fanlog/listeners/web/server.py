"""The web listener: HTTP on one address, by aiohttp, on the broker's own loop."""

from __future__ import annotations

import asyncio
import logging
import random
import socket
from collections.abc import Collection, Coroutine, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
from aiohttp import web

from fanlog.broker.messages.latest_values import LatestTables
from fanlog.config_security import SecurityOptions
from fanlog.errors import TooManyConnectionsError
from fanlog.format.web_positions import Vectors
from fanlog.listeners.accepting import Acceptor
from fanlog.listeners.tls import TlsSocket
from fanlog.listeners.web.app import make_app
from fanlog.listeners.web.connections import WebConnections
from fanlog.listeners.web.dead_index import DeadLetterIndexes
from fanlog.listeners.web.entrance import Entrance
from fanlog.listeners.web.group_tables import GroupTables
from fanlog.listeners.web.http_handler import HttpHandler
from fanlog.listeners.web.listed_peers import RequestPeer, StreamPeer
from fanlog.listeners.web.message_pages import RenderedBatches
from fanlog.listeners.web.origins import Origins
from fanlog.listeners.web.peers import HttpPeer
from fanlog.listeners.web.presence import Presence
from fanlog.listeners.web.problems import CONTENT_TYPE, problem_of
from fanlog.listeners.web.rates import Rate
from fanlog.listeners.web.server_api import ServerApi
from fanlog.listeners.web.tasks import Tasks
from fanlog.listeners.web.tls_transport import TlsTransport

if TYPE_CHECKING:
    from aiohttp.typedefs import Middleware
    from aiohttp.web_protocol import RequestHandler

    from fanlog.broker.broker_core import BrokerCore
    from fanlog.broker.insight.peers import PeerSource
    from fanlog.config_web import WebOptions
    from fanlog.identity import Identity
    from fanlog.listeners.admission import Admission
    from fanlog.listeners.web.connection import WebConnection
    from fanlog.listeners.web.ports import Bus
    from fanlog.listeners.web.stream_protocol import StreamProtocol
    from fanlog.listeners.web.tunnels import Tunnel

logger = logging.getLogger("fanlog.listeners")

_SWEEP_SECONDS = 1.0
# Bytes of one read over TLS.
_RECEIVE_BYTES = 64 * 1024
# A client that reads nothing of an answer for this many times `web.ping_seconds` is disconnected,
# as with streams.
_STALLED_PINGS = 2
# A tunnel that is silent for this long may be closed.
_QUIET_SECONDS = 0.5
# Streams rechecked in one turn of the loop.
_RECHECKED_AT_ONCE = 500


class WebListener(Acceptor):
    """HTTP on one address. It has many fields, because it owns one of each part that requests
    share."""

    protocol: ClassVar[str] = "web"
    section: ClassVar[str] = "web"
    port_flag: ClassVar[str] = "--http-port"
    host_option: ClassVar[str] = "web.host (fanlog.toml)"

    def __init__(
        self,
        bus: Bus,
        options: WebOptions,
        admission: Admission,
        security: SecurityOptions | None = None,
    ) -> None:
        super().__init__(options.host, options.port, options.connections_max, admission)
        self.bus = bus
        self.options = options
        self._security = security or SecurityOptions()
        self._peers: dict[RequestHandler, HttpPeer] = {}
        # Streaming connections, by their protocols.
        self._streams: dict[WebConnection, None] = {}
        self.origins = Origins(options.origins)
        # The ids of events, shared by all streams that are at the same position.
        self.vectors = Vectors()
        self.latest = LatestTables(bus.core, options.latest_bytes_max)
        self.dead_letters = DeadLetterIndexes(bus.core)
        self.tasks = Tasks(bus.core)
        self._joining: set[asyncio.Task[Any]] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._swept_at = 0.0
        self._accepts: Rate
        self._runner: web.AppRunner
        self.connections = WebConnections(bus.process)
        self.presence: Presence
        self.server_api: ServerApi
        self.entrance: Entrance
        # Streams that still need a recheck.
        self._unchecked: list[WebConnection] = []
        self._http_options: dict[str, Any] = {}
        self._inlet = memoryview(bytearray(_RECEIVE_BYTES))
        self.draining = asyncio.Event()
        # Connections passed to another process.
        self._tunnels: dict[Tunnel, None] = {}
        # Additional steps of every request, after counting and before all others.
        self.middlewares: list[Middleware] = []
        self.rendered = RenderedBatches(options.read_cache_bytes)
        self.group_tables = GroupTables(bus.core)

    @property
    def core(self) -> BrokerCore:
        """Where subscriptions read from."""
        return self.bus.core

    async def start(self) -> None:
        """Starts listening. `host` and `port` then have the address."""
        options = self.options
        await self.bus.open()
        self.presence = Presence(self.bus, options)
        self.presence.start()
        self.entrance = Entrance(self, self._security)
        self.server_api = ServerApi(
            self.bus, options, self.presence, self.connections, self.all_listeners
        )
        self._http_options = {
            "access_log": None,
            "keepalive_timeout": options.keepalive_timeout_seconds,
            "max_line_size": options.header_bytes_max,
            "max_field_size": options.header_bytes_max,
        }
        self._runner = web.AppRunner(
            make_app(self), handle_signals=False, handler_cancellation=True
        )
        await self._runner.setup()
        self._accepts = Rate(options.accepts_per_second_max, asyncio.get_running_loop().time())
        self.bus.on_state.append(self._upstream_changed)
        self.open()
        self.origins.listens_on(self.host, self.port, secure=self.secure)
        self._swept_at = self.loop.time()
        self._sweeper = self.loop.call_later(_SWEEP_SECONDS, self._sweep)

    def settings_changed(self) -> None:
        self._accepts.change(self.options.accepts_per_second_max, self.loop.time())

    def connection_count(self) -> int:
        return len(self._peers) + len(self._streams) + len(self._joining) + len(self._tunnels)

    def refusal(self, error: TooManyConnectionsError) -> bytes:
        problem = problem_of(error)
        body = msgspec.json.encode(problem)
        head = (
            f"HTTP/1.1 {problem.status} {problem.title}\r\n"
            f"Content-Type: {CONTENT_TYPE}\r\nContent-Length: {len(body)}\r\n"
            "Retry-After: 5\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + body

    def wait_seconds(self) -> float:
        return self._accepts.wait_seconds(self.loop.time())

    def let_in(self, sock: socket.socket, peer: str) -> None:
        self._accepts.take(1, self.loop.time())
        server = self._runner.server
        assert server is not None
        http = HttpHandler(server, loop=self.loop, **self._http_options)
        if isinstance(sock, TlsSocket):
            joined = TlsTransport(sock, HttpPeer(self, http, peer, sock), self.loop, self._inlet)
            self._admission.came(peer)
            joined.start()
            return
        connecting = self.loop.connect_accepted_socket(
            lambda: HttpPeer(self, http, peer, sock), sock
        )
        # At accept, not after the handshake: many may come at once.
        self._admission.came(peer)
        task = self.loop.create_task(connecting)
        self._joining.add(task)
        task.add_done_callback(partial(self._joined, peer))

    def _joined(self, peer: str, task: asyncio.Task[Any]) -> None:
        self._joining.discard(task)
        if task.cancelled() or task.exception() is not None:
            self._admission.went(peer)
        if not task.cancelled() and task.exception() is not None:
            logger.debug("a connection failed at once: %s", task.exception())

    # Connections

    def connected(self, peer: HttpPeer) -> None:
        self._peers[peer.http] = peer
        self.bus.core.connections += 1
        self.log_connected(peer.peer)

    def disconnected(self, peer: HttpPeer, *, still_open: bool = False) -> None:
        if self._peers.pop(peer.http, None) is not None and not still_open:
            self._admission.went(peer.peer)
            self.bus.core.connections -= 1

    def peer_of(self, request: web.Request) -> str:
        """The address of a request's client."""
        return self._peers[request.protocol].peer

    def take_over(
        self, request: web.Request, stream: WebConnection, protocol: StreamProtocol, head: bytes
    ) -> None:
        """Gives a request's connection to a stream, and sends the head of the answer. The stream
        calls `left` at its end."""
        peer = self._peers[request.protocol]
        self._streams[stream] = None
        transport = peer.take_over(stream)
        stream.opened(transport, peer.sock, protocol, head)
        if self.draining.is_set():
            # It came over a connection opened earlier. The client is asked to reconnect after the
            # stream has begun.
            self.loop.call_soon(stream.drain, self._after_ms())

    def left(self, stream: WebConnection) -> None:
        """A stream's connection is closed."""
        if stream in self._streams:
            del self._streams[stream]
            self._admission.went(stream.peer)
            self.bus.core.connections -= 1

    def give_away(self, request: web.Request, tunnel: Tunnel) -> None:
        """Gives a request's connection to a tunnel, which calls `tunnel_ended` at its end."""
        self._tunnels[tunnel] = None
        tunnel.joined(self._peers[request.protocol].take_over(tunnel))

    def tunnel_ended(self, tunnel: Tunnel) -> None:
        if tunnel in self._tunnels:
            del self._tunnels[tunnel]
            self._admission.went(tunnel.peer)
            self.bus.core.connections -= 1

    def _upstream_changed(self, up: bool) -> None:
        for stream in list(self._streams):
            stream.protocol.upstream(up=up)

    def all_listeners(self) -> list[PeerSource]:
        """Of this process."""
        others = (one for one in self.core.metrics.listeners if one.name != self.name)
        return [self, *others]

    def peers(self) -> Iterator[StreamPeer | RequestPeer]:
        """The connections, for operators."""
        streams = {stream.peer: stream for stream in self._streams}
        for peer in self.connections.every():
            yield StreamPeer(peer, streams.get(peer.address))
        now_us = self.bus.core.now_us()
        for http in list(self._peers.values()):
            yield RequestPeer(http, now_us)

    @property
    def streams(self) -> Collection[WebConnection]:
        """The streaming connections."""
        return self._streams

    # Identities

    def login_of(self, request: web.Request) -> tuple[str, Identity] | None:
        """Credentials seen earlier on a request's connection, and their user."""
        return self._peers[request.protocol].login

    def note_login(self, request: web.Request, shown: str, who: Identity) -> None:
        self._peers[request.protocol].login = (shown, who)

    def certificate_names(self, request: web.Request) -> tuple[str, ...]:
        """The names in the certificate of a request's client."""
        return self._peers[request.protocol].certificate_names

    def recheck(self) -> None:
        """Permissions have changed: rechecks open connections, some at a time, so that messages
        keep flowing."""
        self.entrance.recheck()
        self._unchecked = list(self._streams)
        self._recheck_some()

    def _recheck_some(self) -> None:
        some, self._unchecked = (
            self._unchecked[-_RECHECKED_AT_ONCE:],
            self._unchecked[:-_RECHECKED_AT_ONCE],
        )
        for stream in some:
            stream.protocol.recheck()
        if self._unchecked:
            self.loop.call_soon(self._recheck_some)

    def begun(self, request: web.Request) -> None:
        """The headers of a request have arrived."""
        peer = self._peers.get(request.protocol)
        if peer is not None:
            peer.half_since = None
            peer.active += 1

    def ended(self, request: web.Request) -> None:
        peer = self._peers.get(request.protocol)
        if peer is not None:
            peer.active -= 1

    def _look_after(self, now: float) -> None:
        limit = self.options.header_timeout_seconds
        for peer in list(self._peers.values()):
            if peer.half_since is not None and now - peer.half_since > limit:
                logger.debug("%s: no request within web.header_timeout_seconds", peer.peer)
                peer.transport.abort()
            elif peer.is_stalled(now, _STALLED_PINGS * self.options.ping_seconds):
                logger.debug("%s: the answer is not read", peer.peer)
                peer.transport.abort()
        for stream in list(self._streams):
            stream.swept(now)

    def _sweep(self) -> None:
        """Closes connections that send no request, or do not read an answer, for too long, and
        pings streaming ones. Not if the loop itself was stalled: the data that peers sent meanwhile
        is read before the next sweep."""
        now = self.loop.time()
        stalled = now - self._swept_at > 2 * _SWEEP_SECONDS
        self._swept_at = now
        if not stalled:
            self._look_after(now)
        # A broker does this by itself; the core of an edge does not.
        self.bus.core.fan_out.sweep()
        self._sweeper = self.loop.call_later(_SWEEP_SECONDS, self._sweep)

    async def drain(self, deadline: float) -> None:
        """Stops accepting, asks streaming clients to reconnect elsewhere, each at its own time, and
        waits until all running requests are answered, or until `deadline` on the loop's clock."""
        self.stop_accepting()
        self.draining.set()
        for stream in list(self._streams):
            stream.drain(self._after_ms())
        while self.loop.time() < deadline and (  # noqa: ASYNC110 - counters, no event
            self._streams
            or any(peer.active for peer in self._peers.values())
            or any(self.loop.time() - tunnel.heard_at < _QUIET_SECONDS for tunnel in self._tunnels)
        ):
            await asyncio.sleep(0.01)

    def _after_ms(self) -> int:
        """The delay before a client reconnects. Not secret: it only spreads them."""
        return random.randint(0, int(self.options.reconnect_spread_seconds * 1000))

    async def unless_draining(self, waiting: Coroutine[Any, Any, Any]) -> None:
        """Waits for something, unless a drain begins: then a long poll ends early."""
        tasks = [asyncio.ensure_future(waiting), asyncio.ensure_future(self.draining.wait())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()

    async def close(self) -> None:
        """Closes all connections."""
        self.stop_accepting()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for peer in list(self._peers.values()):
            peer.transport.abort()
        for stream in list(self._streams):
            stream.abort()
        for tunnel in list(self._tunnels):
            tunnel.close()
        await self._runner.cleanup()
        await self.tasks.close()
        self.dead_letters.close()
        await self.entrance.close()
        self.presence.close()
        await self.bus.close()
