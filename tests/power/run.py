"""Cuts the power for as long as you like: `python -m tests.power.run --minutes 10 --seed 1`.

Each round has a machine, a seed and some cuts; a round that fails is repeated with its seed and
`--rounds 1`. What the broker said is in the folder that the last line names.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests.power.campaign import EVERYTHING, campaign
from tests.power.disk import CUTS
from tests.power.machine import machine_of


def one_round(folder: Path, args: argparse.Namespace, seed: int) -> bool:
    kinds = [kind for kind in EVERYTHING if not args.only or kind.__name__.lower() in args.only]
    with machine_of(args.backend, folder, args.mode, seed) as machine:
        try:
            result = asyncio.run(campaign(machine, seed, args.cuts, kinds))
        except BaseException as fault:
            traceback.print_exc()
            if isinstance(fault, KeyboardInterrupt):
                raise
            return False
    print(f"seed {seed}: {result}", flush=True)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=0.0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cuts", type=int, default=8, help="in each round")
    parser.add_argument("--mode", choices=[*CUTS, "any", "keep"], default="any")
    parser.add_argument("--backend", choices=["fuse", "ext4", "kill"], default="fuse")
    parser.add_argument("--only", nargs="*", default=[], help="workloads, such as publishing")
    args = parser.parse_args()
    # Clients lose their connections all the time here.
    logging.getLogger("fanlog").setLevel(logging.ERROR)
    end = time.monotonic() + 60 * args.minutes
    failed: list[int] = []
    done = 0
    while done < args.rounds or time.monotonic() < end:
        seed = args.seed + done
        folder = Path(tempfile.mkdtemp(prefix="fanlog-power-"))
        if not one_round(folder, args, seed):
            print(f"seed {seed} FAILED; see {folder}", flush=True)
            failed.append(seed)
        done += 1
    print(f"{done} rounds, failed seeds: {failed or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
