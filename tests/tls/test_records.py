"""What a peer may cost that sends its bytes in as many records as it can."""

from __future__ import annotations

import select
import socket
import ssl
import threading

from fanlog.listeners.tls import READS_MAX, RECORD_BYTES, TlsSocket
from tests.tls.papers import Papers

PATIENCE_SECONDS = 100.0
RECORDS = 5 * READS_MAX


def connected(papers: Papers) -> tuple[TlsSocket, ssl.SSLSocket]:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(*papers.broker)
    server.sslsocket_class = TlsSocket
    client = ssl.create_default_context(cafile=papers.ca)
    client.check_hostname = False
    with socket.create_server(("127.0.0.1", 0)) as listening:
        near = socket.create_connection(listening.getsockname(), PATIENCE_SECONDS)
        far, _ = listening.accept()
    far.settimeout(PATIENCE_SECONDS)
    dialled: list[ssl.SSLSocket] = []
    thread = threading.Thread(target=lambda: dialled.append(client.wrap_socket(near)))
    thread.start()
    accepted = server.wrap_socket(far, server_side=True)
    thread.join(PATIENCE_SECONDS)
    assert isinstance(accepted, TlsSocket)
    accepted.setblocking(False)
    return accepted, dialled[0]


def test_a_read_ends_after_a_few_records_however_small_they_are(papers: Papers) -> None:
    """Each record costs as much as a large one: a buffer full of records of one byte would hold
    the loop up for a second, and nobody has to log in for it."""
    ours, theirs = connected(papers)
    with ours, theirs:
        for _ in range(RECORDS):
            theirs.send(b"x")
        buffer = bytearray(16 * RECORD_BYTES)
        taken = 0
        while taken < RECORDS:
            # What is left is still to be read: the loop comes back for it.
            assert select.select([ours], [], [], PATIENCE_SECONDS)[0]
            try:
                size = ours.recv_into(buffer)
            except BlockingIOError:
                continue
            assert 0 < size <= READS_MAX
            taken += size
        assert taken == RECORDS
