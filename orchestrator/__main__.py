"""`python -m orchestrator` is `ratchet`: for `ray job submit`, where nothing is installed from the checkout."""

import sys

from orchestrator.cli import main

if __name__ == "__main__":
    sys.exit(main())
