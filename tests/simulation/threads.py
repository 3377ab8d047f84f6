"""Threads of a simulated process: greenlets, of which one runs at a time until it waits.

A thread gives way where it does I/O, sleeps or waits for somebody. How long that takes is chance,
so that loop and threads interleave there in any order. The classes at the end take the places of
those of `threading`, `queue` and `concurrent.futures`, in the modules of Fanlog.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from greenlet import GreenletExit, getcurrent, greenlet

from tests.simulation.world import Event, Killed, Stuck, active

if TYPE_CHECKING:
    from tests.simulation.process import Process

T = TypeVar("T")
_START_SECONDS = 0.001
_STEP_SECONDS = 0.000_5


class Threads:
    """Those of one process."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._world = process.world
        self._dice = process.world.dice(f"threads {process.name}")
        # Those that go on by themselves, and those that wait until something is true.
        self._sleeping: dict[greenlet, Event] = {}
        self._blocked: dict[greenlet, Callable[[], bool]] = {}
        self._all: list[greenlet] = []

    def begin(self, work: Callable[[], object]) -> None:
        def run() -> None:
            try:
                work()
            except (Killed, GreenletExit):
                return
            except BaseException as fault:  # noqa: BLE001 - the run fails with it
                self._process.loop.call_exception_handler(
                    {"message": "a thread failed", "exception": fault}
                )

        thread = greenlet(run, parent=self._world.hub)
        self._all.append(thread)
        self._resume_after(thread, self._dice.uniform(0, _START_SECONDS))

    @property
    def in_thread(self) -> bool:
        return getcurrent() is not self._world.hub

    def step(self) -> None:
        """A thread does I/O: others may run meanwhile."""
        if self.in_thread:
            self.sleep(self._dice.uniform(0, _STEP_SECONDS))

    def sleep(self, seconds: float) -> None:
        self._check_alive()
        if self.in_thread:
            self._resume_after(getcurrent(), seconds)
            self._world.hub.switch()
            self._check_alive()
        else:
            loop = self._process.loop
            loop.busy_until = max(loop.busy_until, self._world.now) + seconds

    def wait(self, ready: Callable[[], bool], seconds: float | None = None) -> bool:
        """Blocks until `ready`; False if it is not in time. On the loop nothing else of the
        process happens meanwhile, but its other threads."""
        if ready():
            return True
        self._check_alive()
        if not self.in_thread:
            return self._run_others(ready, bounded=seconds is not None)
        thread = getcurrent()
        self._blocked[thread] = ready
        if seconds is not None:
            self._resume_after(thread, seconds)
        self._world.hub.switch()
        self._blocked.pop(thread, None)
        self._check_alive()
        return ready()

    def stir(self) -> None:
        """Something has changed that a thread may wait for."""
        for thread, ready in list(self._blocked.items()):
            if ready():
                del self._blocked[thread]
                self._resume_after(thread, self._dice.uniform(0, _STEP_SECONDS))

    def discard(self) -> None:
        for event in self._sleeping.values():
            event.cancel()
        for thread in self._all:
            if not thread.dead:
                thread.throw(GreenletExit)

    def _check_alive(self) -> None:
        if not self._process.alive:
            raise Killed

    def _resume_after(self, thread: greenlet, seconds: float) -> None:
        old = self._sleeping.pop(thread, None)
        if old is not None:
            old.cancel()
        self._sleeping[thread] = self._world.after(seconds, lambda: self._resume(thread))

    def _resume(self, thread: greenlet) -> None:
        self._sleeping.pop(thread).cancel()
        if self._process.alive:
            before = self._process.enter(None)
            try:
                thread.switch()
            finally:
                self._process.leave(*before)

    def _run_others(self, ready: Callable[[], bool], *, bounded: bool) -> bool:
        """The loop blocks: its threads go on, one after the other."""
        while not ready():
            thread = next(iter(self._sleeping), None)
            if thread is None:
                if bounded:
                    return False
                raise Stuck(f"the loop of {self._process.name} waits for ever")
            self._resume(thread)
            self._check_alive()
        return True


def _threads() -> Threads:
    process = active().current
    assert process is not None, "no process runs"
    return process.threads


class SimulatedLock:
    """`threading.Lock`."""

    def __init__(self) -> None:
        self._held = False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        # Somebody else who waited may have been quicker.
        while self._held:
            if not blocking:
                return False
            seconds = timeout if timeout >= 0 else None
            if not _threads().wait(lambda: not self._held, seconds) and seconds is not None:
                return False
        self._held = True
        return True

    def release(self) -> None:
        assert self._held
        self._held = False
        if active().current is not None:
            _threads().stir()

    def locked(self) -> bool:
        return self._held

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


class ModuleLock:
    """A lock that a module makes when it is imported: each process has one of its own."""

    def __init__(self) -> None:
        self._locks: dict[Process, SimulatedLock] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lock, name)

    @property
    def _lock(self) -> SimulatedLock:
        process = active().current
        assert process is not None, "no process runs"
        return self._locks.setdefault(process, SimulatedLock())

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        if active().current is not None:
            self._lock.release()


class SimulatedCondition(SimulatedLock):
    """`threading.Condition`."""

    def __init__(self) -> None:
        super().__init__()
        self._notified = 0

    def wait(self, timeout: float | None = None) -> bool:
        before = self._notified
        self.release()
        try:
            return _threads().wait(lambda: self._notified > before, timeout)
        finally:
            self.acquire()

    def notify_all(self) -> None:
        self._notified += 1
        _threads().stir()


class SimulatedEvent:
    """`threading.Event`."""

    def __init__(self) -> None:
        self._set = False

    def set(self) -> None:
        self._set = True
        _threads().stir()

    def clear(self) -> None:
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def wait(self, timeout: float | None = None) -> bool:
        return _threads().wait(lambda: self._set, timeout)


class SimulatedQueue(Generic[T]):
    """`queue.SimpleQueue`."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()

    def put(self, item: T) -> None:
        self._items.append(item)
        _threads().stir()

    def get(self) -> T:
        while not self._items:
            _threads().wait(lambda: bool(self._items))
        return self._items.popleft()


class SimulatedThread:
    """`threading.Thread`."""

    def __init__(
        self,
        target: Callable[..., object],
        args: tuple[Any, ...] = (),
        name: str = "",
        daemon: bool | None = None,
    ) -> None:
        self._work = lambda: target(*args)
        self._ended = False

    def start(self) -> None:
        threads = _threads()

        def run() -> None:
            self._work()
            self._ended = True
            threads.stir()

        threads.begin(run)

    def join(self, timeout: float | None = None) -> None:
        _threads().wait(lambda: self._ended, timeout)

    def is_alive(self) -> bool:
        return not self._ended


class SimulatedExecutor:
    """`concurrent.futures.ThreadPoolExecutor`."""

    def __init__(self, max_workers: int = 1, thread_name_prefix: str = "") -> None:
        self._free = max_workers
        self._threads = _threads()
        self._waiting: deque[tuple[Future[Any], Callable[[], object]]] = deque()
        self._unfinished = 0
        self._shut = False

    def submit(self, work: Callable[..., T], *args: Any) -> Future[T]:
        if self._shut:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future: Future[T] = Future()
        self._waiting.append((future, lambda: work(*args)))
        self._unfinished += 1
        self._next()
        return future

    def map(self, work: Callable[[Any], T], values: Iterable[Any]) -> Iterator[T]:
        for future in [self.submit(work, value) for value in values]:
            self._threads.wait(future.done)
            yield future.result()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._shut = True
        if cancel_futures:
            while self._waiting:
                self._waiting.popleft()[0].cancel()
                self._unfinished -= 1
        if wait:
            self._threads.wait(lambda: not self._unfinished)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.shutdown()

    def _next(self) -> None:
        if self._free and self._waiting:
            self._free -= 1
            future, work = self._waiting.popleft()
            self._threads.begin(lambda: self._run(future, work))

    def _run(self, future: Future[Any], work: Callable[[], object]) -> None:
        try:
            result = work()
        except Exception as fault:  # noqa: BLE001 - handed on
            future.set_exception(fault)
        else:
            future.set_result(result)
        self._free += 1
        self._unfinished -= 1
        self._next()
        self._threads.stir()
