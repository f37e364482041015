"""Run `ratchet` as `python -m orchestrator` in a checkout, or as `python -m ratchet.orchestrator`."""

import sys

from ratchet.orchestrator.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
