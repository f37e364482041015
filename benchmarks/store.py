"""What a large store costs those who look at it: seconds of `plan`, `status` and `gc`, beside an empty one.

    python -m benchmarks.store [--steps 50000]

The store is made of steps that are done, each with an object of one file, and of no run; a million of them take up some
30 GB of small files, and half an hour to make. Each command is a process of its own, so that start and imports are in.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COMMANDS = (["plan", "quickstart"], ["status"], ["gc"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        empty, full = Path(name, "empty"), Path(name, "full")
        make(full, given.steps)
        print(f"{'':20}{'empty':>10}{f'{given.steps:,} steps':>16}")
        for command in COMMANDS:
            print(f"{' '.join(command):20}{seconds(command, empty):10.2f}{seconds(command, full):16.2f}", flush=True)


def make(root: Path, steps: int) -> None:
    for number in range(steps):
        step, manifest = (hashlib.sha256(f"{kind}{number}".encode()).hexdigest() for kind in ("step", "object"))
        commit = {"step_id": step, "manifest": manifest, "attempt": 1, "identity": {}, "record": {"seconds": 1.0}}
        epoch, held = root / "steps" / step / "epochs" / "1", root / "objects" / manifest
        epoch.mkdir(parents=True)
        held.mkdir(parents=True)
        (epoch / "lease").write_text("{}")
        (epoch / "end").write_text(json.dumps({"commit": commit, "at": 0}))
        (held / "MANIFEST.json").write_text("{}")
        (held / "rows.parquet").write_text("rows")


def seconds(command: list[str], store: Path) -> float:
    start = time.perf_counter()
    line = [sys.executable, "-m", "orchestrator", *command, "--store", str(store)]
    subprocess.run(line, cwd=ROOT, check=True, capture_output=True)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
