"""Names of producers: one client at a time publishes under each, also across a restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from fanlog.config import BrokerOptions
from fanlog.errors import FencedError, InvalidArgumentError, LimitError
from fanlog.format.messages import ProducerRegistered, RegisterProducer
from fanlog.model import PRODUCER_EPOCH_MAX, PRODUCER_ID_MAX
from tests.broker.stage import Publisher, Stage, stage

IDLE_SECONDS = 100_000


def register(
    on: Stage, name: str = "billing", known: ProducerRegistered | None = None
) -> ProducerRegistered:
    wanted = RegisterProducer(name) if known is None else RegisterProducer(name, *numbers(known))
    registered = on.core.producers.register(wanted)
    on.run()
    return registered


def numbers(known: ProducerRegistered) -> tuple[int, int]:
    return known.id, known.epoch


def publish(
    on: Stage, who: ProducerRegistered, value: bytes, sequence: int, topic: str = "t"
) -> Publisher:
    """One batch of a registered producer, and its turn."""
    publisher = Publisher(who.id)
    on.publish(topic, [value], publisher, sequence=sequence, epoch=who.epoch)
    on.run()
    return publisher


def codes(publisher: Publisher) -> list[str]:
    return [error.code for _, _, error in publisher.refusals]


def test_each_registration_gets_the_same_id_and_the_next_epoch() -> None:
    with stage() as on:
        first, second, other = register(on), register(on), register(on, "other")
        assert 0 < first.id <= PRODUCER_ID_MAX
        assert second == ProducerRegistered(first.id, first.epoch + 1)
        assert other.id != first.id


def test_a_registration_shuts_the_one_before_out_at_once_and_everywhere() -> None:
    with stage() as on:
        old = register(on)
        for topic in ("t", "u"):
            assert publish(on, old, b"a", 0, topic).refusals == []
        new = register(on)
        for topic in ("t", "u", "never used before"):
            for sequence in (0, 1):
                refused = publish(on, old, b"never", sequence, topic)
                assert codes(refused) == ["fenced"]
                assert refused.acks == []
        assert publish(on, new, b"b", 0).refusals == []
        assert publish(on, new, b"c", 1).refusals == []
        assert codes(publish(on, old, b"never", 1)) == ["fenced"]
        assert on.values("t") == [b"a", b"b", b"c"]
        assert on.values("u") == [b"a"]


def test_with_a_new_epoch_numbers_begin_with_zero() -> None:
    with stage() as on:
        old = register(on)
        publish(on, old, b"a", 0)
        new = register(on)
        assert codes(publish(on, new, b"never", 1)) == ["unknown_producer"]
        (ack,) = publish(on, new, b"b", 0).acks
        assert (ack.base_offset, ack.duplicate) == (1, 0)
        (ack,) = publish(on, new, b"b", 0).acks
        assert (ack.base_offset, ack.duplicate) == (1, 1)


def test_a_producer_that_comes_back_keeps_its_epoch_unless_it_was_shut_out() -> None:
    with stage() as on:
        old = register(on)
        publish(on, old, b"a", 0)
        assert register(on, known=old) == old
        assert publish(on, old, b"b", 1).refusals == []
        register(on)
        with pytest.raises(FencedError, match="'billing'"):
            register(on, known=old)


@pytest.mark.parametrize("durability", ["os", "fsync", "memory"])
def test_who_was_shut_out_stays_out_across_a_restart(data: Path, durability: str) -> None:
    with stage(data, durability=durability) as on:
        old = register(on)
        publish(on, old, b"a", 0)
        on.sync_group.sync()
        on.run()
        new = register(on)
    with stage(data, durability=durability) as on:
        assert codes(publish(on, old, b"a", 0)) == ["fenced"]
        assert codes(publish(on, old, b"never", 1)) == ["fenced"]
        with pytest.raises(FencedError):
            register(on, known=old)
        assert register(on, known=new) == new
        assert publish(on, new, b"b", 0).refusals == []
        assert register(on).epoch == new.epoch + 1
        assert codes(publish(on, new, b"never", 1)) == ["fenced"]


def test_a_broker_that_keeps_nothing_takes_the_word_of_who_comes_back() -> None:
    with stage() as on:
        known = register(on)
        newer = register(on)
    with stage() as on:
        assert register(on, known=newer) == newer
        with pytest.raises(FencedError):
            register(on, known=known)


def test_who_comes_back_to_a_forgotten_name_goes_on_and_can_be_shut_out(data: Path) -> None:
    options = BrokerOptions(producer_idle_seconds=IDLE_SECONDS)
    with stage(data, options=options) as on:
        known = register(on)
        publish(on, known, b"a", 0)
        on.runtime.time_us += (IDLE_SECONDS + 1) * 1_000_000
        assert list(on.core.producers.expire())
        assert register(on, known=known) == known
        (ack,) = publish(on, known, b"a", 0).acks
        assert (ack.base_offset, ack.duplicate) == (0, 1)
        # The partition has known it all the time, and must forget it now.
        register(on)
        assert codes(publish(on, known, b"never", 1)) == ["fenced"]


def test_a_name_whose_last_registration_was_lost_takes_the_word_of_who_comes_back(
    data: Path,
) -> None:
    """As after a power loss. What the log has of the newer epoch stays known."""
    with stage(data) as on:
        lost = ProducerRegistered(register(on).id, 2)
        publish(on, lost, b"a", 0)
    with stage(data) as on:
        assert register(on, known=lost) == lost
        (ack,) = publish(on, lost, b"a", 0).acks
        assert (ack.base_offset, ack.duplicate) == (0, 1)
        assert register(on).epoch == 3
        assert codes(publish(on, lost, b"never", 1)) == ["fenced"]


def test_past_the_last_epoch_a_name_gets_another_id(data: Path) -> None:
    with stage(data) as on:
        last = register(on, known=ProducerRegistered(77, PRODUCER_EPOCH_MAX))
        publish(on, last, b"a", 0)
        new = register(on)
        assert new.id != last.id
        assert new.epoch <= last.epoch
        assert codes(publish(on, last, b"never", 1)) == ["fenced"]
    with stage(data) as on:
        assert codes(publish(on, last, b"never", 1)) == ["fenced"]
        assert publish(on, new, b"b", 0).refusals == []


def test_what_can_not_be_registered_is_said() -> None:
    with stage(options=BrokerOptions(producer_names_max=2)) as on:
        for name in ("", "x" * 256):
            with pytest.raises(InvalidArgumentError, match="1 to 255 bytes"):
                register(on, name)
        known = register(on)
        for wrong in ((-1, 1), (PRODUCER_ID_MAX + 1, 1), (5, 0), (5, 65536), (known.id, 1)):
            with pytest.raises(InvalidArgumentError, match="register without them"):
                register(on, "other", ProducerRegistered(*wrong))
        register(on, "other")
        with pytest.raises(LimitError, match="producer_names_max"):
            register(on, "third")
        register(on, "other")


def test_a_name_that_nobody_used_for_long_is_forgotten(data: Path) -> None:
    options = BrokerOptions(producer_idle_seconds=IDLE_SECONDS)
    with stage(data, options=options) as on:
        known, kept = register(on), register(on, "kept")
        on.core.producers.connected("kept")
        on.runtime.time_us += (IDLE_SECONDS - 1) * 1_000_000
        on.core.housekeeping()
        assert register(on, known=known) == known
        on.runtime.time_us += (IDLE_SECONDS + 1) * 1_000_000
        on.core.housekeeping()
        assert register(on).id != known.id
        assert register(on, "kept", kept) == kept
        on.core.producers.left("kept")
        on.runtime.time_us += (IDLE_SECONDS + 1) * 1_000_000
        on.core.housekeeping()
    with stage(data, options=options) as on:
        assert register(on, "kept").id != kept.id


def test_after_a_start_an_old_name_has_time_to_come_back(data: Path) -> None:
    options = BrokerOptions(producer_idle_seconds=IDLE_SECONDS)
    with stage(data, options=options) as on:
        known = register(on)
        began_us = on.runtime.time_us
    with stage(data, options=options, time_us=began_us + 5 * IDLE_SECONDS * 1_000_000) as on:
        on.core.housekeeping()
        on.runtime.time_us += 1_800_000_000
        on.core.housekeeping()
        assert register(on).id == known.id
    with stage(data, options=options, time_us=began_us + 15 * IDLE_SECONDS * 1_000_000) as on:
        on.runtime.time_us += 3_601_000_000
        on.core.housekeeping()
        assert register(on).id != known.id


def test_a_deleted_topic_is_not_held_on_to() -> None:
    with stage() as on:
        known = register(on)
        publish(on, known, b"a", 0)
        on.core.delete_topic("t")
        on.core.housekeeping()
        new = register(on)
        assert publish(on, new, b"b", 0).refusals == []
        assert on.values("t") == [b"b"]
