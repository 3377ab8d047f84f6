"""`python -m tests.simulation`: runs seeds until one fails, and says how to replay it."""

from __future__ import annotations

import sys

from tests.simulation.run import main

if __name__ == "__main__":
    sys.exit(main())
