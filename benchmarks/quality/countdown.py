"""The recipe `countdown`: a small decoder learns Countdown from scratch, and each of its checkpoints is evaluated.

    python -m benchmarks.quality.countdown                     two numbers, a small model: minutes on two cores
    python -m benchmarks.quality.countdown --size published    three and four numbers, 4 million weights: for a GPU
    python -m benchmarks.quality.countdown --set sft.epochs=4  any setting of `ratchet run countdown`

Prints the table of the run's report. Its charts and the failures of each checkpoint are in the store's report.html.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SIZES = {
    "small": [
        *(
            "make_countdown.sizes=2",
            "make_countdown.tasks=5000",
            "checkpoints=100,300,600,1000",
            "max_test=500",
        ),
        *("sft.epochs=8", "sft.batch_size=32", "sft.learning_rate=3e-3", "sft.max_new_tokens=60"),
        *(
            "generate.max_new_tokens=60",
            "init_decoder.hidden_size=128",
            "init_decoder.num_hidden_layers=3",
        ),
    ],
    "published": [],
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--store", type=Path, default=Path(".ratchet"))
    given = parser.parse_args()
    settings = [part for line in [*SIZES[given.size], *given.set] for part in ("--set", line)]
    store = ["--store", str(given.store.absolute())]
    ratchet = [sys.executable, "-m", "ratchet.orchestrator"]
    if status := subprocess.run(
        [*ratchet, "run", "countdown", *settings, *store], cwd=ROOT
    ).returncode:
        raise SystemExit(status)
    subprocess.run([*ratchet, "report", *store], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
