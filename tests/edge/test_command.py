"""`fanlog edge` as a command."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import fanlog
from fanlog.cli.app import main
from tests.edge.edge_process import EdgeProcess
from tests.edge.stage import PATIENCE_SECONDS, broker_at, until
from tests.servers import free_port


async def test_an_edge_waits_for_its_upstream_says_so_once_serves_and_drains(
    tmp_path: Path,
) -> None:
    port = free_port()
    log = tmp_path / "edge.log"
    with EdgeProcess(f"fanlog://127.0.0.1:{port}", log) as edge:
        await until(lambda: "the edge waits for it" in log.read_text())
        async with broker_at(port) as broker:
            broker.listen()
            await asyncio.to_thread(edge.wait)
            assert log.read_text().count("the edge waits for it") == 1
            assert edge.http_port
            async with fanlog.connect(edge.url) as client:
                async with client.subscribe("t") as reader:
                    await client.publish("t", "x")
                    assert (await reader.next(PATIENCE_SECONDS)).text == "x"
                assert (await client.status()).state == "ok"
            assert await asyncio.to_thread(edge.stop) == 0
    assert "Drained and stopped" in log.read_text()
    assert "Traceback" not in log.read_text()


@pytest.mark.parametrize(
    ("upstream", "said"),
    [
        ("", "give its address with --upstream"),
        ("http://127.0.0.1:7422", "is an address for browsers"),
        ("kafka://127.0.0.1", "is not the address of a bus"),
        ("fanlog://127.0.0.1:x", "is not an address"),
        ("fanlog://127.0.0.1:7420,127.0.0.1:x", "is not an address"),
        ("fanlog://me:hidden@127.0.0.1", "list of processes"),
        ("redis://:hidden@127.0.0.1", "list of processes"),
    ],
)
def test_an_upstream_that_makes_no_sense_is_refused_with_a_sentence(
    upstream: str, said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    given = ["--upstream", upstream] if upstream else []
    assert main(["edge", *given]) != 0
    captured = capsys.readouterr().err
    assert said in captured.replace("\n", " ")
    assert "hidden" not in captured


def test_help_of_edge_shows_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["edge", "--help"]) == 0
    assert "fanlog edge --upstream" in capsys.readouterr().out
