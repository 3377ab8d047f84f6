"""Options are changed in a file that people have written, and nothing else in it."""

from __future__ import annotations

import os
import stat
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanlog.cli import toml_file
from fanlog.cli.configuration import commented_toml
from fanlog.errors import ConfigError

FILE = """\
# Our broker.
data = "/var/lib/fanlog"   # a large disk

[listener]
# Clients connect here.
port = 7500  # not 7420
host = '0.0.0.0'

# The rest is as it was.
[redis]
port = -1
"""


def test_a_value_changes_and_comments_and_order_stay() -> None:
    made = toml_file.edited(
        FILE, {("listener", "port"): 7600, ("listener", "host"): "::1", ("", "data"): "/data"}
    )
    assert made == (
        FILE.replace("7500", "7600")
        .replace("'0.0.0.0'", '"::1"')
        .replace('"/var/lib/fanlog"', '"/data"')
    )


def test_a_new_option_goes_to_the_end_of_its_section_and_a_new_section_to_the_end() -> None:
    made = toml_file.edited(
        FILE, {("listener", "drain_seconds"): 2.5, ("audit", "level"): "all", ("", "x"): True}
    )
    assert "host = '0.0.0.0'\ndrain_seconds = 2.5\n\n# The rest" in made
    assert made.endswith('port = -1\n\n[audit]\nlevel = "all"\n')
    assert "a large disk\nx = true\n\n[listener]" in made


def test_an_option_is_taken_out() -> None:
    made = toml_file.edited(FILE, {("listener", "port"): None, ("listener", "none"): None})
    assert made == FILE.replace("port = 7500  # not 7420\n", "")


def test_in_a_file_of_config_init_an_option_goes_behind_its_own_line() -> None:
    text = commented_toml(Path("fanlog.toml"))
    made = toml_file.edited(text, {("listener", "drain_seconds"): 3.0})
    lines = made.splitlines()
    at = lines.index("drain_seconds = 3.0")
    assert lines[at - 1].startswith("# drain_seconds = ")
    assert len(lines) == len(text.splitlines()) + 1


def test_windows_line_ends_stay() -> None:
    made = toml_file.edited(FILE.replace("\n", "\r\n"), {("listener", "port"): 1})
    assert made == FILE.replace("7500", "1").replace("\n", "\r\n")


def test_an_empty_file_gets_its_first_option() -> None:
    assert toml_file.edited("", {("web", "port"): 1}) == "[web]\nport = 1\n"


@pytest.mark.parametrize(
    "text",
    [
        "listener.port = 7500\n",
        "listener = { port = 7500 }\n",
        '[listener]\nport = """\n7500"""\n',
        "[listener]\nport = [\n 1\n]\n",
    ],
)
def test_what_cannot_be_changed_safely_is_left_alone(text: str) -> None:
    with pytest.raises(ConfigError, match="by hand"):
        toml_file.edited(text, {("listener", "port"): 1})


@given(
    st.dictionaries(
        st.tuples(st.sampled_from(["", "listener", "redis", "audit"]), st.sampled_from("abcport")),
        st.none() | st.booleans() | st.integers() | st.text() | st.floats(0, 1e9),
    )
)
def test_a_change_says_what_was_wanted_and_nothing_else(
    changes: dict[tuple[str, str], bool | int | float | str | None],
) -> None:
    wanted = tomllib.loads(FILE)
    for (section, name), value in changes.items():
        place = wanted.setdefault(section, {}) if section else wanted
        if value is None:
            place.pop(name, None)
        else:
            place[name] = value
    try:
        made = toml_file.edited(FILE, changes)
    except ConfigError:
        return  # It was refused, so nothing would be written.
    assert tomllib.loads(made) == wanted


def test_a_file_keeps_its_mode_and_a_link_stays_one(tmp_path: Path) -> None:
    real, link = tmp_path / "real.toml", tmp_path / "link.toml"
    real.write_text("a = 1\n")
    real.chmod(0o640)
    link.symlink_to(real)
    toml_file.replace(link, "a = 2\n")
    assert link.is_symlink()
    assert real.read_text() == "a = 2\n"
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link.toml", "real.toml"]


def test_a_file_that_cannot_be_written_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "fanlog.toml"
    file.write_text("a = 1\n")

    def no_room(*_: object) -> None:
        raise OSError(28, "No space left on device")

    for call in ("fsync", "replace"):
        with monkeypatch.context() as broken:
            broken.setattr(os, call, no_room)
            with pytest.raises(ConfigError, match="can't be written"):
                toml_file.replace(file, "a = 2\n")
    assert file.read_text() == "a = 1\n"
    assert [p.name for p in tmp_path.iterdir()] == ["fanlog.toml"]


def test_what_a_power_cut_has_left_does_not_stop_the_next_change(tmp_path: Path) -> None:
    # In a container every start has the same number of process.
    file = tmp_path / "fanlog.toml"
    file.write_text("a = 1\n")
    (tmp_path / f"fanlog.toml.tmp-{os.getpid()}").write_text("a")
    toml_file.replace(file, "a = 2\n")
    assert file.read_text() == "a = 2\n"
    assert [p.name for p in tmp_path.iterdir()] == ["fanlog.toml"]
