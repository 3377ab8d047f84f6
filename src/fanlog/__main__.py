"""`python -m fanlog`: the same as the script `fanlog`."""

from __future__ import annotations

import sys

from fanlog.cli import main

if __name__ == "__main__":
    sys.exit(main())
