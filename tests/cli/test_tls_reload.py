"""A broker with TLS that is told to read its certificate again."""

from __future__ import annotations

import signal
import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import fanlog
from fanlog.security.certificates import read_der_certificate
from tests.cli.conftest import PATIENCE_SECONDS, Serving
from tests.tls.papers import HOST, Papers


def _names(port: int, papers: Papers) -> tuple[str, ...]:
    context = ssl.create_default_context(cafile=papers.ca)
    with (
        socket.create_connection((HOST, port), PATIENCE_SECONDS) as plain,
        context.wrap_socket(plain, server_hostname=HOST) as sock,
    ):
        return read_der_certificate(sock.getpeercert(binary_form=True) or b"").names


def test_sighup_reads_the_certificate_again(serve: Callable[..., Serving], tmp_path: Path) -> None:
    papers = Papers(tmp_path / "papers")
    certificate, key = map(str, papers.broker)
    broker = serve(
        "--memory",
        FANLOG_TLS_CERTIFICATE_FILE=certificate,
        FANLOG_TLS_PRIVATE_KEY_FILE=key,
        FANLOG_TLS_RELOAD_CHECK_SECONDS="3600",
    )
    assert broker.url.startswith("fanlogs://")
    assert "rediss://" in "".join(broker.banner)
    assert "https://" in "".join(broker.banner)
    port = urlsplit(broker.url).port or 0
    with fanlog.sync.connect(broker.url, tls_ca_file=papers.ca, reconnect=False) as client:
        papers.authority.issue("broker", ["renewed", "localhost", HOST])
        assert "renewed" not in _names(port, papers)
        broker.process.send_signal(signal.SIGHUP)
        give_up_at = time.monotonic() + PATIENCE_SECONDS
        while "renewed" not in _names(port, papers):
            assert time.monotonic() < give_up_at
            time.sleep(0.05)
        # The old connection is there, and a file that is broken changes nothing.
        client.publish("still", b"works")
        Path(certificate).write_text("nonsense", encoding="ascii")
        broker.process.send_signal(signal.SIGHUP)
        while not any("the old ones stay" in said for said in client.status().problems):
            assert time.monotonic() < give_up_at
            time.sleep(0.05)
        client.publish("still", b"works")
        assert "renewed" in _names(port, papers)
    ended = broker.stop()
    assert ended.code == 0, ended.err
    assert "SIGHUP: nothing has changed: tls.certificate_file" in ended.err
