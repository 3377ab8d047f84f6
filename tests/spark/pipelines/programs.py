"""Pipelines that are programs, as modules, so that they share the Spark of the tests."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

from fanlog.spark.pipelines import find, program_options


def load_program(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"pipeline_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_program(name: str, state: Path, *more: Any, **options: str) -> None:
    """Runs a pipeline's program in this process, with the session that there is."""
    path = find(name).program
    given = [f"{key}={value}" for key, value in options.items()]
    settled = program_options(str(path), [*given, f"state={state}", "master=local[2]"])
    getattr(load_program(path), name)(settled, *more)
