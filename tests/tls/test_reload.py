"""New certificates while the broker runs, broken ones, and those that end soon."""

from __future__ import annotations

import asyncio
import datetime
import logging
import os
import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization as s

import fanlog
from fanlog.security.certificates import Certificates, read_der_certificate
from tests.tls.papers import HOST, PATIENCE_SECONDS, Papers, Serving, serving


@pytest.fixture(autouse=True)
def _log_everything(caplog: pytest.LogCaptureFixture) -> None:  # pyright: ignore[reportUnusedFunction]
    caplog.set_level(logging.INFO, "fanlog")


async def _presented(port: int, papers: Papers) -> tuple[str, ...]:
    """The names in the certificate that a new connection gets."""
    context = ssl.create_default_context(cafile=papers.ca)
    _, writer = await asyncio.open_connection(HOST, port, ssl=context)
    der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return read_der_certificate(der).names


async def _until_presented(served: Serving, papers: Papers, name: str) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while name not in await _presented(served.native.port, papers):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_a_new_certificate_is_used_without_dropping_anybody(papers: Papers) -> None:
    """Under load: messages go on over the old connections, and new ones get the new certificate."""
    options = papers.options(reload_check_seconds=0.05)
    async with (
        serving(options, redis=True, web=True) as served,
        fanlog.connect(served.url, tls_ca_file=papers.ca, reconnect=False) as client,
    ):
        assert served.redis is not None
        assert served.web is not None
        stop = asyncio.Event()

        async def load() -> int:
            count = 0
            while not stop.is_set():
                await client.publish("numbers", b"%d" % count)
                count += 1
            return count

        async with client.subscribe("numbers", start="earliest") as numbers:
            loading = asyncio.create_task(load())
            for turn in range(3):
                papers.authority.issue("broker", [f"renewed-{turn}", "localhost", HOST])
                await _until_presented(served, papers, f"renewed-{turn}")
            for port in (served.redis.port, served.web.port):
                assert "renewed-2" in await _presented(port, papers)
            stop.set()
            count = await loading
            got = [int((await numbers.next(PATIENCE_SECONDS)).value) for _ in range(count)]
        assert got == list(range(count))
        assert client.reconnects == 0


async def test_a_broken_file_is_refused_and_the_old_one_stays(
    papers: Papers, caplog: pytest.LogCaptureFixture
) -> None:
    certificate, key = papers.broker
    good = certificate.read_bytes(), key.read_bytes()
    async with serving(papers.options()) as served:
        certificates = served.node.certificates
        assert certificates is not None
        for path, data in (
            (certificate, b"nonsense"),
            (certificate, b""),
            (key, b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"),
            (key, papers.authority.issue("other", ["localhost"])[1].read_bytes()),
        ):
            path.write_bytes(data)
            assert not certificates.reload()
            assert "localhost" in await _presented(served.native.port, papers)
            status = served.node.core.status()
            assert status.state == "degraded"
            assert "the old ones stay in use" in status.problems[0]
            certificate.write_bytes(good[0])
            key.write_bytes(good[1])
        certificate.unlink()
        assert not certificates.reload()
        certificate.write_bytes(good[0])
        assert certificates.reload()
        assert served.node.core.status().state == "ok"
    assert "The new TLS files are refused, and the old ones stay in use" in caplog.text


def test_files_that_change_one_after_the_other(papers: Papers, tmp_path: Path) -> None:
    """As a secret of Kubernetes changes: by a link, or first the one and then the other."""
    first, second = tmp_path / "first", tmp_path / "second"
    other = Papers(papers.folder / "other")
    for folder, pair in ((first, papers.broker), (second, other.broker)):
        folder.mkdir()
        for path, name in zip(pair, ("tls.crt", "tls.key"), strict=True):
            (folder / name).write_bytes(path.read_bytes())
    link = tmp_path / "current"
    link.symlink_to(first)
    files = {"certificate_file": link / "tls.crt", "private_key_file": link / "tls.key"}
    certificates = Certificates(papers.options(**{k: str(v) for k, v in files.items()}))
    certificates.look()
    assert certificates.reloads == 0
    (first / "tls.crt").write_bytes(other.broker[0].read_bytes())
    certificates.look()
    assert "is not the key of" in certificates.problem
    (first / "tls.key").write_bytes(other.broker[1].read_bytes())
    certificates.look()
    assert (certificates.reloads, certificates.problem) == (1, "")
    (tmp_path / "new").symlink_to(second)
    os.replace(tmp_path / "new", link)
    certificates.look()
    assert certificates.reloads == 2


def test_a_certificate_that_ends_soon_is_warned_of(
    papers: Papers, caplog: pytest.LogCaptureFixture
) -> None:
    now = datetime.datetime.now(datetime.UTC).timestamp()
    certificates = Certificates(papers.options(), clock=lambda: now)
    assert certificates.problem == ""
    for days, said in ((77, "expires in 13.0 days"), (91, "has expired: clients refuse it")):
        later = now + days * 86_400
        late = Certificates(papers.options(), clock=lambda later=later: later)
        assert said in late.problem
        assert said in caplog.text
        caplog.clear()
        # Once a day, and not with every look.
        late.look()
        assert said not in caplog.text


def test_a_key_with_a_password_is_not_asked_for(papers: Papers) -> None:
    _, key = papers.broker
    plain = s.load_pem_private_key(key.read_bytes(), None)
    locked = plain.private_bytes(
        s.Encoding.PEM, s.PrivateFormat.PKCS8, s.BestAvailableEncryption(b"secret")
    )
    key.write_bytes(locked)
    with pytest.raises(fanlog.FanlogError, match="has a password"):
        Certificates(papers.options())
