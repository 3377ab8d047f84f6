"""The program of a worker. Only `fanlog serve --workers N` starts it. Its settings come over the
channel that it inherits. It ends with its core, whatever happens to that."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
from contextlib import suppress

from fanlog.cli.exit_codes import ExitCode
from fanlog.cli.logs import LogLevel, set_log_level, set_up_logging
from fanlog.cli.process import calm_garbage_collector, prepare_process, run_on_loop
from fanlog.errors import FanlogError
from fanlog.listeners.operator_requests import close_connections, list_connections
from fanlog.telemetry.process import measure_usage
from fanlog.workers.channel import (
    Apply,
    AskConnections,
    Begin,
    Drain,
    FoundConnections,
    Opened,
    StartFailed,
    WorkerChannel,
    open_channel,
)
from fanlog.workers.worker_node import WorkerNode

logger = logging.getLogger("fanlog.workers")

_REPORT_SECONDS = 1.0
# A core that takes no reports is busy: the next one is as good.
_REPORTS_BYTES_MAX = 64 * 1024


def main() -> None:
    # A terminal sends these to every process of a command; the core decides what follows.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sock = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(sock.fileno(), False)
    _end_with_core(sock)
    prepare_process()
    run_on_loop(_run(sock))


def _end_with_core(sock: socket.socket) -> None:
    """Ends this process when the core's end of the channel is closed, even if the loop hangs."""
    watched = sock.dup()

    def watch() -> None:
        import select  # noqa: PLC0415 - Windows has no poll, and no workers

        poll = select.poll()
        # Not POLLIN: the loop reads the bytes.
        poll.register(watched, select.POLLHUP)
        poll.poll()
        os._exit(ExitCode.FAILED)

    threading.Thread(target=watch, name="fanlog-core", daemon=True).start()


async def _run(sock: socket.socket) -> None:
    channel = await open_channel(sock)
    begin = await channel.next_to_worker()
    if not isinstance(begin, Begin):
        return
    set_up_logging(LogLevel(begin.config.telemetry.log_level), as_json=begin.log_json)
    # The core's clients hear of what the connection to it does.
    logging.getLogger("fanlog.client").setLevel(logging.WARNING)
    try:
        node = await _open(begin)
    except FanlogError as fault:
        channel.send(StartFailed(str(fault)))
        await channel.flush()
        return
    calm_garbage_collector()
    channel.send(Opened())
    node.watch()
    drain = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, drain.set)
    tasks = [
        asyncio.create_task(_report(node, channel)),
        asyncio.create_task(_obey(node, channel, drain)),
    ]
    await drain.wait()
    await node.stop()
    for task in tasks:
        task.cancel()
    await channel.flush()


async def _open(begin: Begin) -> WorkerNode:
    """The worker, with its ports open."""
    node = WorkerNode(begin.number, begin.config, begin.socket, begin.secret)
    node.start()
    try:
        await node.connect()
        if "native" in begin.listeners:
            node.listen()
        if "redis" in begin.listeners:
            node.listen_redis()
        if "web" in begin.listeners:
            await node.listen_web()
    except BaseException:
        await node.stop()
        raise
    return node


async def _report(node: WorkerNode, channel: WorkerChannel) -> None:
    """The core kills a worker that does not report: so this waits for no thread, and no disk."""
    while True:
        if channel.waiting_bytes < _REPORTS_BYTES_MAX:
            channel.send(node.report(*measure_usage()))
        await asyncio.sleep(_REPORT_SECONDS)


async def _obey(node: WorkerNode, channel: WorkerChannel, drain: asyncio.Event) -> None:
    """Does what the core says."""
    while (message := await channel.next_to_worker()) is not None:
        match message:
            case Drain():
                drain.set()
            case Apply(config):
                try:
                    node.apply(config)
                    set_log_level(config.telemetry.log_level)
                except FanlogError as fault:
                    # The core has taken them. A file may have changed since.
                    logger.error("New settings were not taken: %s", fault)
            case AskConnections(id, wanted):
                closing = wanted.kind == "close"
                answer = close_connections if closing else list_connections
                with suppress(FanlogError):
                    channel.send(FoundConnections(id, await answer(node.core, wanted)))
            case Begin():
                return


if __name__ == "__main__":
    main()
