"""Staged bytes: in memory, then in a file, and known to be whole when they come back."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanlog.errors import DamagedError, LogFailedError
from fanlog.format.checksum import crc32c
from fanlog.log.staging import StagedBytes, sweep_staged


@given(st.lists(st.binary(min_size=1, max_size=50)), st.integers(0, 10))
def test_it_is_what_was_appended_wherever_it_is(parts: list[bytes], spilled_after: int) -> None:
    staged = StagedBytes()
    for i, part in enumerate(parts):
        if i == spilled_after:
            staged.spill()
        staged.append(part)
    whole = b"".join(parts)
    assert staged.length == len(whole)
    assert staged.crc == crc32c(whole)
    assert staged.in_file == (spilled_after < len(parts))
    assert staged.memory_bytes == (0 if staged.in_file else len(whole))
    found = staged.read(0, len(whole)) if staged.in_file else staged.data()
    assert found == whole
    staged.discard()


def test_a_file_comes_back_whole_or_is_said_to_be_damaged(tmp_path: Path) -> None:
    path = tmp_path / "transactions" / "ticket"
    staged = StagedBytes(str(path))
    staged.append(b"some ")
    staged.spill()
    staged.append(b"bytes")
    staged.sync()
    staged.close()
    again = StagedBytes.reopen(str(path), 10, staged.crc)
    assert again.read(5, 100) == b"bytes"
    again.close()
    with pytest.raises(DamagedError, match="put it back"):
        StagedBytes.reopen(str(path), 11, staged.crc)
    path.write_bytes(b"some_bytes")
    with pytest.raises(DamagedError):
        StagedBytes.reopen(str(path), 10, staged.crc)
    path.unlink()
    with pytest.raises(LogFailedError, match="put them back"):
        StagedBytes.reopen(str(path), 10, staged.crc)


def test_what_is_discarded_or_swept_leaves_no_file(tmp_path: Path) -> None:
    staged = [StagedBytes(str(tmp_path / name)) for name in "abc"]
    for some in staged:
        some.append(b"x")
        some.spill()
        some.spill()
    staged[0].discard()
    staged[1].close()
    staged[2].close()
    sweep_staged(str(tmp_path), {"c"})
    assert [path.name for path in tmp_path.iterdir()] == ["c"]
    sweep_staged(str(tmp_path / "nowhere"), set())
