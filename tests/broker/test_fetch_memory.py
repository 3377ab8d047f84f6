"""Memory for answers to fetches: who may read on, who waits for whom, and who is cut off."""

from __future__ import annotations

from fanlog.broker.messages.fetch_memory import FetchMemory
from fanlog.errors import LimitError
from tests.broker.stage import Peer

MAX = 800


class Bench:
    """Peers whose fetches begin and end when the test says so. A share is 100 bytes."""

    def __init__(self) -> None:
        self.now_us = 0
        self.memory = FetchMemory(MAX, 1.0, lambda: self.now_us)
        self.started: list[str] = []

    def begin(self, peer: Peer, size: int, name: str = "") -> None:
        self.memory.begin(peer, size, lambda: self.started.append(name))

    def end(self, peer: Peer, size: int, *, blocked: bool = False) -> None:
        peer.blocked = blocked
        self.memory.end(peer, size, size)

    def drain(self, peer: Peer) -> None:
        peer.blocked = False
        self.memory.drained(peer)


def test_answers_that_are_taken_at_once_hold_nothing() -> None:
    on = Bench()
    peer = Peer()
    for _ in range(100):
        on.begin(peer, 90)
        on.end(peer, 90)
    assert len(on.started) == 100
    assert on.memory.used == 0
    assert on.memory._accounts == {}


def test_one_connection_gets_its_share_and_then_waits_for_itself() -> None:
    on = Bench()
    peer, other = Peer(), Peer()
    for name in "abcd":
        on.begin(peer, 40, name)
    on.begin(other, 40, "x")
    assert on.started == ["a", "b", "x"]
    on.end(peer, 40)
    assert on.started == ["a", "b", "x", "c"]


def test_a_connection_whose_peer_takes_nothing_gets_no_further_answer() -> None:
    on = Bench()
    peer = Peer()
    on.begin(peer, 40, "a")
    on.end(peer, 40, blocked=True)
    on.begin(peer, 1, "b")
    assert on.started == ["a"]
    assert on.memory.used == 40
    on.drain(peer)
    assert on.started == ["a", "b"]


def test_past_the_limit_fetches_wait_in_their_order() -> None:
    on = Bench()
    stuck = [Peer() for _ in range(4)]
    for peer in stuck:
        on.begin(peer, 200)
        on.end(peer, 200, blocked=True)
    assert on.memory.used == MAX
    late = [Peer() for _ in range(3)]
    for name, peer in zip("abc", late, strict=True):
        on.begin(peer, 150, name)
    assert on.started == [""] * 4
    on.drain(stuck[0])
    assert on.started[4:] == ["a"]
    on.drain(stuck[1])
    assert on.started[4:] == ["a", "b"]
    on.end(late[0], 150)
    assert on.started[4:] == ["a", "b", "c"]


def test_one_answer_may_be_larger_than_the_limit_if_it_is_alone() -> None:
    on = Bench()
    large, small = Peer(), Peer()
    on.begin(large, 2 * MAX, "large")
    on.begin(small, 1, "small")
    assert on.started == ["large"]
    on.end(large, 2 * MAX)
    assert on.started == ["large", "small"]


def test_what_a_closed_connection_held_is_free_and_what_it_waited_for_is_not_read() -> None:
    on = Bench()
    peer, other, third = Peer(), Peer(), Peer()
    on.begin(peer, 500, "a")
    on.begin(peer, 500, "never")
    on.begin(other, 500, "also never")
    on.begin(third, 500, "later")
    on.memory.gone(other)
    on.memory.gone(peer)
    assert on.started == ["a"]
    # It was being read when its connection ended.
    on.end(peer, 500, blocked=True)
    assert on.started == ["a", "later"]
    on.end(third, 500)
    assert on.memory.used == 0
    assert on.memory._accounts == {}
    assert not on.memory._holders


def test_many_that_end_at_once_do_not_pile_up_on_the_stack() -> None:
    on = Bench()
    blocker = Peer()
    on.begin(blocker, MAX)
    peers = [Peer() for _ in range(5000)]
    for peer in peers:
        on.memory.begin(peer, 10, lambda peer=peer: on.memory.end(peer, 10, 10))
    on.end(blocker, MAX)
    assert on.memory.used == 0
    assert on.memory._accounts == {}


def test_who_keeps_others_waiting_for_longest_is_cut_off() -> None:
    on = Bench()
    first, second, healthy = Peer(), Peer(), Peer()
    for peer in (first, second):
        on.begin(peer, MAX // 2)
        on.end(peer, MAX // 2, blocked=True)
        on.now_us += 500_000
    on.now_us += 10_000_000
    on.memory.tick()
    # Nobody waits: then memory is no reason.
    assert first.ended is None
    on.begin(healthy, 10, "healthy")
    on.memory.tick()
    assert isinstance(first.ended, LimitError)
    assert "fetch_memory_bytes" in str(first.ended)
    assert second.ended is None
    on.memory.gone(first)
    assert on.started[-1] == "healthy"
    on.memory.tick()
    assert second.ended is None
