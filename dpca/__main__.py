"""``python -m dpca``: runs the ``dpca`` command if it is not on the path."""

from __future__ import annotations

import sys

from dpca.cli import main

if __name__ == "__main__":
    sys.exit(main())
