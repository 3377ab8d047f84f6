"""A driver that archives until it is killed: `python archiving.py NAME=VALUE ...`."""

from __future__ import annotations

import sys

from fanlog.spark.pipelines import find, program_options
from tests.spark.pipelines.programs import load_program
from tests.spark.sessions import session


def main(arguments: list[str]) -> None:
    # The program finds this session, which tests start quicker.
    session("local[2,4]")
    program = find("archive").program
    load_program(program).archive(program_options(str(program), arguments))


if __name__ == "__main__":
    main(sys.argv[1:])
