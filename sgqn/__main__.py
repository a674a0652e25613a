"""`python -m sgqn`: the command."""

from __future__ import annotations

import sys

from sgqn.cli import main

if __name__ == "__main__":
    sys.exit(main())
