"""The sparse index: its file, its searches, and the cache of those that were used last."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from fanlog.errors import FormatError
from fanlog.log.index import Index, IndexCache, SealedIndex, decode_index, encode_index
from fanlog.model import KIB
from tests.log.pieces import OPTIONS, SETTINGS, fill, open_log


def sealed(count: int = 5) -> SealedIndex:
    index = Index()
    for i in range(count):
        index.add(100 + 10 * i, 1000 * i, 5_000_000 + i)
    return SealedIndex(index, 100, 100 + 10 * count, 6_000_000, 1000 * count)


def test_an_index_comes_back_from_its_file() -> None:
    before = sealed()
    after = decode_index(encode_index(before))
    assert after[1:] == before[1:]
    assert after.entries.offsets == before.entries.offsets
    assert after.entries.positions == before.entries.positions
    assert after.entries.times == before.entries.times


def test_the_file_is_laid_out_as_documented() -> None:
    data = encode_index(sealed(2))
    assert data[:8] == b"FANLIDX1"
    numbers = [int.from_bytes(data[at : at + 8], "little") for at in range(16, len(data), 8)]
    assert int.from_bytes(data[12:16], "little") == 2
    assert numbers == [100, 120, 6_000_000, 2000, 100, 110, 0, 1000, 5_000_000, 5_000_001]


def test_any_flipped_or_missing_byte_of_the_file_is_found() -> None:
    data = encode_index(sealed())
    for at in range(len(data)):
        with pytest.raises(FormatError):
            decode_index(data[:at] + bytes([data[at] ^ 0x80]) + data[at + 1 :])
        with pytest.raises(FormatError):
            decode_index(data[:at])


def test_the_entry_before_an_offset_or_a_time_is_found() -> None:
    index = sealed().entries
    assert index.before(99) is None
    assert index.before(100) == index.before(109) == (100, 0)
    assert index.before(110) == (110, 1000)
    assert index.before(10**9) == (140, 4000)
    assert index.before_time(5_000_000) is None
    assert index.before_time(5_000_001) == (100, 0)
    assert index.before_time(10**9) == (140, 4000)


def test_a_segment_has_an_entry_for_each_interval_and_not_for_each_piece(tmp_path: Path) -> None:
    settings = msgspec.structs.replace(SETTINGS, segment_bytes=64 * KIB)
    log = open_log(tmp_path, settings)
    fill(log, 500)
    log.close()
    found = decode_index(min(tmp_path.glob("*.idx")).read_bytes())
    steps = [
        b - a for a, b in zip(found.entries.positions, found.entries.positions[1:], strict=False)
    ]
    assert 40 < len(steps) < 64
    assert all(OPTIONS.index_interval_bytes <= step < 2 * KIB for step in steps)


def test_the_cache_forgets_what_was_not_used_longest() -> None:
    each = sealed()
    cache = IndexCache(3 * each.entries.memory_bytes)
    for name in "abc":
        cache.put(name, each)
    assert cache.get("a") is each
    cache.put("d", each)
    assert [name for name in "abcd" if cache.get(name)] == ["a", "c", "d"]
    cache.forget("a")
    assert cache.get("a") is None
    cache.put("large", sealed(10_000))
    assert [name for name in ("c", "d", "large") if cache.get(name)] == ["large"]
