"""The example of docs/containers.md, as containers that start together run it: the program first,
the broker after it, with the options of the compose file."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import yaml

import fanlog.sync
from tests.servers import free_port

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs/containers.md").read_text("utf-8")


def block(title: str) -> str:
    found = re.search(rf'^```\w+ title="{title}"\n(.*?)^```$', DOCUMENT, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


def test_a_program_that_starts_before_its_broker_waits_for_it(tmp_path: Path) -> None:
    services = yaml.safe_load(block("compose.yaml"))["services"]
    (tmp_path / "app.py").write_text(block("app.py"))
    port = free_port()
    url = services["app"]["environment"]["FANLOG_URL"].replace("broker:7420", f"127.0.0.1:{port}")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "FANLOG_URL": url}
    app = subprocess.Popen([sys.executable, "app.py"], cwd=tmp_path, env=environment)
    time.sleep(0.5)  # it has tried in vain
    serve = services["broker"]["command"][1:]
    serve[serve.index("0.0.0.0")] = "127.0.0.1"
    serve[serve.index("/data")] = str(tmp_path / "data")
    ports = ["--port", str(port), "--redis-port", "-1", "--http-port", "-1"]
    broker = subprocess.Popen([sys.executable, "-m", "fanlog", *serve, *ports], env=environment)
    try:
        assert app.wait(60) == 0
        health = services["broker"]["healthcheck"]["test"][2:]
        subprocess.run([sys.executable, "-m", "fanlog", *health], env=environment, check=True)
        with (
            fanlog.sync.connect(url) as client,
            client.subscribe("greetings", start="earliest") as greetings,
        ):
            assert greetings.next(60).text == "hello"
    finally:
        app.kill()
        app.wait()
        broker.terminate()
        assert broker.wait(60) == 0
