"""What is missing is told in a sentence that says what to install."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import fanlog.spark
from fanlog.errors import ConfigError
from fanlog.spark.environment import check_java


def test_a_machine_without_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(ConfigError, match=r"Spark needs Java 17 or newer.*openjdk-17-jre-headless"):
        check_java()
    with pytest.raises(ConfigError, match="Spark needs Java 17"):
        fanlog.spark.session()


def a_java(home: Path, version: str) -> Path:
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").touch(mode=0o755)
    (home / "release").write_text(f'IMPLEMENTOR="somebody"\nJAVA_VERSION="{version}"\n')
    return home


def test_a_java_home_that_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Spark would start nothing, and say `FileNotFoundError` or `Java gateway process exited`."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    for start in (check_java, fanlog.spark.session):
        with pytest.raises(ConfigError, match=r"JAVA_HOME is .*gone.*Correct it, or unset it"):
            start()


@pytest.mark.parametrize(("version", "shown"), [("1.8.0_392", 8), ("11.0.21", 11)])
def test_a_java_that_is_too_old(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str, shown: int
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(a_java(tmp_path / "old", version)))
    with pytest.raises(ConfigError, match=rf"needs Java 17 or newer; JAVA_HOME .* is Java {shown}"):
        check_java()


def test_a_java_that_is_new_enough(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(a_java(tmp_path / "new", "21.0.1")))
    check_java()
    (tmp_path / "new" / "release").unlink()
    check_java()


def test_an_environment_without_spark() -> None:
    code = (
        "import sys; sys.modules['pyspark'] = None\n"
        "import fanlog, fanlog.spark, fanlog.cli, fanlog.bench\n"
        "try: fanlog.spark.register(None)\n"
        "except fanlog.FanlogError as fault: print(fault)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "This needs Spark: run pip install 'fanlog[spark]'.\n"
