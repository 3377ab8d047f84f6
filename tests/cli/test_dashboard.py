"""`fanlog dashboard`: where it is, and what opens it."""

from __future__ import annotations

import http.server
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fanlog.security.keys import make_key
from tests.cli.conftest import Run, Serving

Serve = Callable[..., Serving]


def site_of(serving: Serving) -> str:
    found = re.search(r"http://\S+:\d+/", serving.banner[3])
    assert found is not None, serving.banner
    return found[0]


def test_serve_says_where_the_dashboard_is(serve: Serve) -> None:
    serving = serve("--memory")
    assert f"{site_of(serving)} is the dashboard" in serving.banner[3]


def test_beside_a_page_of_the_user_it_has_a_path_of_its_own(
    serve: Serve, run: Run, tmp_path: Path
) -> None:
    folder = tmp_path / "page"
    folder.mkdir()
    (folder / "index.html").write_text("<h1>Mine</h1>")
    serving = serve("--memory", FANLOG_WEB_FOLDER=str(folder))
    site = site_of(serving)
    assert serving.banner[3].endswith(f"the dashboard is at {site}dashboard/")
    assert run("dashboard", "--print", "--url", site).out == f"{site}dashboard/\n"


def test_it_opens_in_the_browser(broker: Serving, run: Run, tmp_path: Path) -> None:
    opened = tmp_path / "opened"
    program = tmp_path / "browser"
    program.write_text(f'#!/bin/sh\necho "$1" > {opened}\n')
    program.chmod(0o755)
    site = site_of(broker)
    ended = run("dashboard", "--url", site, BROWSER=f"{program} %s")
    assert (ended.code, ended.out, ended.err) == (0, f"{site}\n", "")
    assert opened.read_text() == f"{site}\n"


def test_without_a_browser_it_says_what_to_do(broker: Serving, run: Run) -> None:
    ended = run("dashboard", "--url", site_of(broker), BROWSER="/does/not/exist", PATH="")
    assert ended.out == f"{site_of(broker)}\n"
    assert "open the address in one" in ended.err


def test_a_native_address_leads_to_the_port_of_the_web_listener(broker: Serving, run: Run) -> None:
    site = site_of(broker)
    port = site.rstrip("/").rpartition(":")[2]
    assert (
        run("dashboard", "--print", "--http-port", port, FANLOG_URL=broker.url).out == f"{site}\n"
    )
    assert run("dashboard", "--print", FANLOG_WEB_PORT=port).out == f"{site}\n"


def test_the_settings_of_the_folder_name_the_port(serve: Serve, run: Run, tmp_path: Path) -> None:
    site = site_of(serve("--memory"))
    port = site.rstrip("/").rpartition(":")[2]
    (tmp_path / "fanlog.toml").write_text(f"[web]\nport = {port}\n")
    assert run("dashboard", "--print").out == f"{site}\n"


def test_a_broker_with_logins_says_that_it_asks_for_one(
    serve: Serve, run: Run, tmp_path: Path
) -> None:
    key = tmp_path / "admin.key"
    key.write_text(make_key())
    key.chmod(0o600)
    serving = serve(
        "--memory", FANLOG_SECURITY_AUTH="true", FANLOG_SECURITY_ADMIN_KEY_FILE=str(key)
    )
    ended = run("dashboard", "--print", "--url", site_of(serving))
    assert ended.out == f"{site_of(serving)}\n"
    assert "asks for a login" in ended.err


def test_nobody_there_is_69(run: Run) -> None:
    ended = run("dashboard", "--url", "http://127.0.0.1:1")
    assert ended.code == 69
    assert "fanlog serve" in ended.sentence
    assert ended.out == ""


class _Other(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<h1>Something else</h1>")

    def log_message(self, format: str, *given: object) -> None:
        del format, given


@pytest.fixture
def other() -> Iterator[str]:
    """A web server that is no broker."""
    server = http.server.HTTPServer(("127.0.0.1", 0), _Other)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_what_is_no_broker_is_not_opened(run: Run, other: str) -> None:
    ended = run("dashboard", "--url", other)
    assert ended.code == 1
    assert "is not a Fanlog broker" in ended.sentence


def test_a_key_in_the_address_is_refused(run: Run) -> None:
    ended = run("dashboard", "--url", f"http://:{make_key()}@127.0.0.1:7422")
    assert ended.code == 2
    assert "--url must not contain" in ended.sentence
