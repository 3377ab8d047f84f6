"""`pip install fanlog`, on every Python that this machine has."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import fanlog
from tests.packaging.distributions import ROOT, Distributions
from tests.packaging.environments import STEP_SECONDS_MAX, Bare, pythons

PYTHONS = pythons()
FIRST_MESSAGE = """
import sys
import fanlog.sync

with fanlog.sync.connect(sys.argv[1]) as client:
    client.create_topic("orders", durability="fsync", partitions=2)
    receipt = client.publish("orders", b"tea", key="alice")
    with client.subscribe("orders", start="earliest") as orders:
        print(orders.next(timeout_seconds=60).text, receipt.durability)
"""


def names_in_wheel(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as files:
        return set(files.namelist())


def test_the_wheel_holds_every_module_and_nothing_else(distributions: Distributions) -> None:
    sources = ROOT / "src"
    ours = {
        str(path.relative_to(sources))
        for path in sources.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    packed = {name for name in names_in_wheel(distributions.wheel) if ".dist-info/" not in name}
    assert packed == ours


def test_the_wheel_carries_its_licence_and_its_types(distributions: Distributions) -> None:
    names = names_in_wheel(distributions.wheel)
    assert "fanlog/py.typed" in names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_the_page_on_pypi_is_the_readme(distributions: Distributions) -> None:
    with zipfile.ZipFile(distributions.wheel) as files:
        (path,) = [name for name in files.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = files.read(path).decode()
    assert f"Version: {fanlog.__version__}" in metadata
    assert "Description-Content-Type: text/markdown" in metadata
    assert "# Fanlog" in metadata


def test_the_sdist_can_be_tested_and_leaves_out_what_was_built(
    distributions: Distributions,
) -> None:
    with tarfile.open(distributions.sdist) as files:
        names = {name.partition("/")[2] for name in files.getnames()}
    for wanted in ("README.md", "LICENSE", "Makefile", "pyproject.toml", "docs/architecture.md"):
        assert wanted in names
    assert {"scripts/setup-venv", "tests/conftest.py", "typings/lz4/__init__.pyi"} <= names
    assert not [name for name in names if re.search(r"__pycache__|\.venv|/site/", name)]


@pytest.mark.parametrize("version", PYTHONS)
def test_a_first_message_after_pip_install(
    version: str, distributions: Distributions, tmp_path: Path
) -> None:
    bare = Bare.make(PYTHONS[version], tmp_path, own_pip=False)
    bare.install(str(distributions.wheel))
    assert bare.run("fanlog", "--version").stdout == f"fanlog {fanlog.__version__}\n"
    with subprocess.Popen(
        [bare.bin / "fanlog", "serve", "--port", "0", "--redis-port", "-1", "--http-port", "-1"],
        cwd=bare.home,
        env=bare.environment(),
        stdout=subprocess.PIPE,
        text=True,
    ) as broker:
        try:
            assert broker.stdout is not None
            found = re.search(r"fanlog://\S+", broker.stdout.readline())
            assert found is not None
            said = bare.run("python", "-W", "error", "-c", FIRST_MESSAGE, found[0])
            assert said.stdout == "tea fsync\n", said.stderr
            listed = bare.run("fanlog", "topic", "list", "--json", FANLOG_URL=found[0])
            assert '"orders"' in listed.stdout, listed.stderr
        finally:
            broker.terminate()
            broker.communicate(timeout=STEP_SECONDS_MAX)
    assert broker.returncode == 0


@pytest.mark.parametrize("module", ["fanlog", "fanlog.sync", "fanlog.errors"])
def test_an_import_loads_no_terminal_and_no_data_packages(module: str) -> None:
    program = f"import {module}, sys; print(*{{name.partition('.')[0] for name in sys.modules}})"
    loaded = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert not {"typer", "rich", "numpy", "pandas", "pyarrow", "pyspark", "redis"} & set(loaded)
