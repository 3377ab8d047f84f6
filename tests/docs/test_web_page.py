"""The curl lines of docs/web.md do what they say."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import msgspec

import fanlog
from fanlog.config import Config
from tests.servers import find_program

PAGE = Path(__file__).parents[2] / "docs" / "web.md"
# An answer with an error ends the script.
CURL = 'curl() { command curl -sS --max-time 60 --fail-with-body "$@"; echo; }\n'


def lines_of(chapter: str) -> list[str]:
    """The curl lines of a chapter with `##`, in order."""
    text = PAGE.read_text(encoding="utf-8")
    (found,) = re.findall(rf"^## {chapter}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    blocks = re.findall(r"^```sh\n(.*?)^```", found, re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.startswith("curl ")]


async def test_the_rest_lines_work_in_their_order() -> None:
    find_program("curl", "apt-get install curl")
    config = Config()
    config = msgspec.structs.replace(config, web=msgspec.structs.replace(config.web, port=0))
    lines = lines_of("REST")
    assert len(lines) > 15
    async with fanlog.Broker(None, config) as broker:
        listener = await broker.listen_web()
        script = "\n".join(lines).replace("127.0.0.1:7422", f"127.0.0.1:{listener.port}")
        shell = await asyncio.create_subprocess_exec(
            "bash",
            "-euc",
            CURL + script,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await shell.communicate()
        assert shell.returncode == 0, said.decode()
        answers = [msgspec.json.decode(line) for line in said.splitlines() if line]
        # Of all answers only that to the delete is empty.
        assert len(answers) == len(lines) - 1
        assert (await broker.describe_topic("orders")).records == 4
