"""How far a small decoder, made here and trained from nothing, learns Countdown: its checkpoints, by the recipe itself.

    python -m benchmarks.countdown                  two numbers, under a million weights: minutes on two cores
    python -m benchmarks.countdown --size published three and four numbers, 4 million weights: for a GPU
    python -m benchmarks.countdown --set epochs=4   any setting of `ratchet run countdown`

Prints the table of the run's report; its pictures and the failures of each checkpoint are in the store's report.html.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SIZES = {
    "small": [
        *("sizes=2", "tasks=5000", "epochs=8", "batch=32", "learning_rate=3e-3", "checkpoints=100,300,600,1000"),
        *("max_test=500", "max_new_tokens=60", "make_decoder.hidden=128", "make_decoder.layers=3"),
    ],
    "published": ["tasks=10000", "checkpoints=500,1000,1500,2000,3000", "epochs=6"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--store", type=Path, default=Path(".ratchet"))
    given = parser.parse_args()
    settings = [part for line in [*SIZES[given.size], *given.set] for part in ("--set", line)]
    store = ["--store", str(given.store.absolute())]
    ratchet = [sys.executable, "-m", "orchestrator"]
    if status := subprocess.run([*ratchet, "run", "countdown", *settings, *store], cwd=ROOT).returncode:
        raise SystemExit(status)
    subprocess.run([*ratchet, "report", *store], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
