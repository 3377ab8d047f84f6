"""Runs a program as `python PROGRAM ...` would, and leaves its exit code in a run's state folder:
`python -m fanlog.spark.pipelines.ended STATE PROGRAM ...`.

Law: it is the same process, so that signals reach the program itself. One that is killed leaves
nothing, and by that it is known.
"""

from __future__ import annotations

import runpy
import signal
import sys
from pathlib import Path

from fanlog.log.files import replace_file

END = "run.end"


def recorded(state: Path, program: Path, *given: str) -> list[str]:
    """The command that runs a program so."""
    return [sys.executable, "-m", __name__, str(state), str(program), *given]


def main(state: str, program: str, *given: str) -> None:
    sys.argv = [program, *given]
    # Python searches the program's folder first, as if it had been started alone.
    if not sys.flags.safe_path:
        sys.path[0] = str(Path(program).parent)
    code = 1
    try:
        runpy.run_path(program, run_name="__main__")
        code = 0
    except SystemExit as ended:
        code = _code(ended)
        raise
    except KeyboardInterrupt:
        code = -int(signal.SIGINT)
        raise
    finally:
        replace_file(str(Path(state) / END), b"%d" % code, durable=True)


def _code(ended: SystemExit) -> int:
    """As in Python: None is success, and a text is a failure."""
    if ended.code is None:
        return 0
    return ended.code if isinstance(ended.code, int) else 1


if __name__ == "__main__":
    main(*sys.argv[1:])
