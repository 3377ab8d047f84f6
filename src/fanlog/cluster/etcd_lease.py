"""Keeps keys in etcd under a lease, from a thread of its own.

Law: the lease says that this node's event loop runs. The loop calls `beat`; if it did not for a
third of the lease, the thread renews nothing until it does again. So long work in the loop costs
nobody the lease, and a loop that hangs loses it. The thread asks etcd with blocking HTTP, which
needs nothing of the loop.
"""

from __future__ import annotations

import logging
import ssl
import threading
import time
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import urlsplit

from fanlog.cluster import etcd_messages as messages
from fanlog.cluster.etcd_address import EtcdAddress
from fanlog.cluster.etcd_messages import BadAnswerError, EtcdFault, FaultClass

logger = logging.getLogger("fanlog.cluster")

_ANSWER_BYTES_MAX = 64 * 1024


class _LeaseFaultError(Exception):
    """etcd did not do what the thread asked for."""

    def __init__(self, fault: EtcdFault) -> None:
        super().__init__(fault.message)
        self.fault = fault


class LeaseKeeper:
    """`put` and `beat` are for the event loop. Neither waits."""

    def __init__(self, address: EtcdAddress, tls: ssl.SSLContext | None) -> None:
        self._address = address
        self._tls = tls
        self._thread = threading.Thread(target=self._run, name="etcd-lease", daemon=True)
        self._changed = threading.Condition()
        self._wanted: dict[str, bytes] = {}
        self._stopping = False
        self._beaten = time.monotonic()
        # What follows is the thread's own.
        self._lease = 0
        self._stored: dict[str, bytes] = {}
        self._endpoint = 0
        self._token = ""
        self._failing = False

    def start(self) -> None:
        self._thread.start()

    def beat(self) -> None:
        """The event loop runs."""
        self._beaten = time.monotonic()

    def put(self, key: str, value: bytes) -> None:
        """From now on the key has this value, as soon as etcd can be reached."""
        with self._changed:
            self._wanted[key] = value
            self._changed.notify()

    def stop(self) -> None:
        """Ends the lease, if etcd answers soon. It blocks."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        # A request may be under way, and the end of the lease is one more.
        self._thread.join(3 * self._address.request_seconds)

    # The thread

    def _run(self) -> None:
        every_seconds = self._address.lease_seconds / 3
        while True:
            began = time.monotonic()
            with self._changed:
                stopping, wanted = self._stopping, dict(self._wanted)
            if stopping:
                break
            if self._loop_runs():
                self._renew(wanted)
            with self._changed:
                # After a fault it asks the next member soon; then the wait is the usual one.
                pause = (
                    every_seconds / 4 if self._failing or not self._loop_runs() else every_seconds
                )
                left = began + pause - time.monotonic()
                if left > 0 and not self._stopping and self._wanted == wanted:
                    self._changed.wait(left)
        self._end()

    def _loop_runs(self) -> bool:
        return time.monotonic() - self._beaten < self._address.lease_seconds / 3

    def _renew(self, wanted: dict[str, bytes]) -> None:
        """One round: the lease lives, and all keys are under it."""
        try:
            if self._lease and not self._keep_alive():
                logger.warning("The lease in etcd has ended: taking a new one")
                self._lease = 0
            if not self._lease:
                seconds = self._address.lease_seconds
                self._lease = messages.read_granted(
                    self._ask(messages.GRANT, messages.grant_body(seconds))
                )
                self._stored.clear()
            for key, value in wanted.items():
                if self._stored.get(key) != value:
                    self._ask(messages.PUT, messages.put_body(key, value, self._lease))
                    self._stored[key] = value
        except _LeaseFaultError as fault:
            if fault.fault.kind is FaultClass.LEASE:
                self._lease = 0
            self._note(fault)
        except (BadAnswerError, HTTPException, OSError, ValueError) as fault:
            self._note(fault)
        else:
            if self._failing:
                logger.info("The lease in etcd is renewed again")
            self._failing = False

    def _keep_alive(self) -> bool:
        kept = messages.read_kept(self._ask(messages.KEEP_ALIVE, messages.lease_body(self._lease)))
        if isinstance(kept, EtcdFault):
            raise _LeaseFaultError(kept)
        return kept

    def _end(self) -> None:
        if not self._lease:
            return
        try:
            self._ask(messages.REVOKE, messages.lease_body(self._lease))
        except (_LeaseFaultError, HTTPException, OSError, ValueError) as fault:
            logger.info("The lease in etcd will end by itself: %s", fault)

    def _note(self, fault: Exception) -> None:
        """Says so once, and asks another member next."""
        if not self._failing:
            logger.warning("The lease in etcd was not renewed: %s", fault or type(fault).__name__)
        self._failing = True
        self._endpoint = (self._endpoint + 1) % len(self._address.endpoints)

    # Requests

    def _ask(self, path: str, body: bytes) -> bytes:
        for attempt in range(2):
            if self._address.user and not self._token:
                self._log_in()
            status, data = self._exchange(path, body)
            if status == 200:
                return data
            fault = messages.read_fault(status, data, has_login=bool(self._address.user))
            self._token = "" if fault.kind is FaultClass.LOGIN else self._token
            if fault.kind is not FaultClass.LOGIN or attempt:
                raise _LeaseFaultError(fault)
        raise AssertionError("the second attempt returns or raises")

    def _log_in(self) -> None:
        body = messages.login_body(self._address.user, self._address.password)
        status, data = self._exchange(messages.AUTHENTICATE, body)
        if status != 200:
            raise _LeaseFaultError(messages.read_fault(status, data, has_login=False))
        self._token = messages.read_token(data)

    def _exchange(self, path: str, body: bytes) -> tuple[int, bytes]:
        """One request. Of a stream only the first line is read."""
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = self._token
        connection = self._connect()
        try:
            connection.request("POST", path, body, headers)
            response = connection.getresponse()
            return response.status, response.readline(_ANSWER_BYTES_MAX)
        finally:
            connection.close()

    def _connect(self) -> HTTPConnection:
        parts = urlsplit(self._address.endpoints[self._endpoint])
        host, seconds = parts.hostname or "", self._address.request_seconds
        if parts.scheme == "https":
            return HTTPSConnection(host, parts.port or 443, timeout=seconds, context=self._tls)
        return HTTPConnection(host, parts.port or 80, timeout=seconds)
