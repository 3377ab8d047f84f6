"""`fanlog tls dev` and `fanlog tls check`."""

from __future__ import annotations

import asyncio
import json
import stat
from pathlib import Path

import pytest

import fanlog
from fanlog.cli import main
from fanlog.config_security import TlsOptions
from tests.tls.papers import HOST, Papers, serving


async def test_what_dev_makes_is_used_by_a_broker_and_a_client(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "made"
    arguments = ["tls", "dev", "--dir", str(folder), "--name", "broker.test", "--client", "ann"]
    assert main(arguments) == 0
    said = capsys.readouterr().out
    assert "fanlog serve" in said
    assert "FANLOG_TLS_CA_FILE" in said
    for path in folder.glob("*.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    options = TlsOptions(
        certificate_file=str(folder / "broker.pem"),
        private_key_file=str(folder / "broker.key"),
        client_ca_file=str(folder / "ca.pem"),
        client_certificates="required",
    )
    ca = (folder / "ca.pem").read_bytes()
    async with (
        serving(options) as served,
        fanlog.connect(
            f"fanlogs://localhost:{served.native.port}",
            tls_ca_file=str(folder / "ca.pem"),
            tls_certificate_file=str(folder / "client-ann.pem"),
            tls_key_file=str(folder / "client-ann.key"),
        ),
    ):
        assert next(iter(served.native._connections)).certificate_names == ("ann",)
    # Again: the same authority, new certificates.
    before = (folder / "broker.pem").read_bytes()
    assert main(arguments) == 0
    assert (folder / "ca.pem").read_bytes() == ca
    assert (folder / "broker.pem").read_bytes() != before


def test_dev_refuses_half_an_authority(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tls", "dev", "--dir", str(tmp_path)]) == 0
    (tmp_path / "ca.key").unlink()
    assert main(["tls", "dev", "--dir", str(tmp_path)]) != 0
    assert "ca.key does not" in " ".join(capsys.readouterr().err.split())
    assert main(["tls", "dev", "--dir", str(tmp_path), "--client", "../x"]) != 0


async def test_check_shows_what_a_server_presents(
    papers: Papers, capsys: pytest.CaptureFixture[str]
) -> None:
    async with serving(papers.options(), web=True) as served:
        assert served.web is not None
        for url in (served.url, f"https://{HOST}:{served.web.port}"):
            command = ["tls", "check", url, "--json", "--ca-file", papers.ca]
            assert await asyncio.to_thread(main, command) == 0
            said = json.loads(capsys.readouterr().out)
            assert (said["trusted"], said["protocol"]) == (True, "TLSv1.3")
            assert said["certificate"]["names"] == ["localhost", HOST]
            assert 89 < said["days_left"] <= 90
        assert await asyncio.to_thread(main, ["tls", "check", served.url]) == 1
        shown = " ".join(capsys.readouterr().out.split())
        assert "refused" in shown
        assert "Give tls_ca_file" in shown
    async with serving(papers.options(certificate_file="")) as served:
        assert await asyncio.to_thread(main, ["tls", "check", served.url]) != 0
        assert "does not use TLS" in " ".join(capsys.readouterr().err.split())


async def test_check_warns_of_a_certificate_that_ends_soon(
    papers: Papers, capsys: pytest.CaptureFixture[str]
) -> None:
    papers.authority.issue("broker", ["localhost", HOST], days=3)
    async with serving(papers.options()) as served:
        command = ["tls", "check", served.url, "--ca-file", papers.ca]
        assert await asyncio.to_thread(main, command) == 1
        assert "expires soon" in capsys.readouterr().out
