"""The command line. It alone reads settings from files, the environment and flags, and it alone
writes to the terminal; everything below it takes arguments and raises errors."""

from __future__ import annotations

from fanlog.cli.app import main

__all__ = ["main"]
