"""Seconds of `plan`, `status`, `models` and `gc` on a large store, compared with an empty store.

    python -m benchmarks.orchestrator.store [--steps 50000] [--runs 1000] [--s3-steps 2000] [--s3-endpoint URL]

The store consists of finished steps, each with an object of one file, and of runs of 24 of these steps. A million steps
take about 40 GB of small files, and ten minutes or more to make. All results are within the grace period of `gc`, which
then does not have to look at files; without a grace period `gc` looks at every file, and in the end removes them. Each
command is a separate process, so its time includes the start of Python and the imports. With `--s3-steps` a store in
the bucket `kept` is measured first: on the server at `--s3-endpoint`, with its keys in the AWS_* variables, or else on
moto (in memory, one process, whose listing takes most of the time).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ratchet.orchestrator.store import Store

ROOT = Path(__file__).resolve().parents[2]
STEPS_PER_RUN = 24
ALL = ["gc", "--grace-period", "0"]
COMMANDS = (["plan", "quickstart"], ["status"], ["models"], ["gc"], ALL, [*ALL, "--yes"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--s3-steps", type=int, default=0)
    parser.add_argument("--s3-endpoint", default="", help="address of a server that speaks S3")
    given = parser.parse_args()
    if given.s3_steps:
        in_bucket(given.s3_steps, given.runs, given.s3_endpoint)
    if not given.steps:
        return
    with tempfile.TemporaryDirectory() as folder:
        empty, full = Path(folder, "empty"), Path(folder, "full")
        Store.open(str(empty))
        make(full, given.steps, given.runs)
        print(f"{'':20}{'empty':>10}{f'{given.steps:,} steps':>16}")
        for command in COMMANDS:
            print(
                f"{' '.join(command):20}{seconds(command, empty):10.2f}{seconds(command, full):16.2f}",
                flush=True,
            )


def make(root: Path, steps: int, runs: int) -> None:
    Store.open(str(root))
    for number in range(runs):
        folder = root / "runs" / f"20260101-{number:06d}-quickstart-{number:04x}"
        folder.mkdir(parents=True)
        (folder / "about.json").write_text(
            json.dumps({"recipe": "quickstart", "started": number, "parameters": {}})
        )
        own = [
            (f"step{at}", *name(number * STEPS_PER_RUN + at))
            for at in range(min(steps, STEPS_PER_RUN))
        ]
        about = {"job": "merge", "inputs": {}, "config": {}}
        planned = [
            {"name": step, "step_id": id, "object": digest, "status": "done", **about}
            for step, id, digest in own
        ]
        (folder / "plan.json").write_text(json.dumps({"recipe": "quickstart", "steps": planned}))
        events = [
            {"t": number, "event": "done", "step": step, "step_id": id, "seconds": 1.0}
            for step, id, _ in own
        ]
        events.append(
            {"t": number, "event": "end", "step": None, "failures": {}, "interrupted": False}
        )
        (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    for number in range(steps):
        step, manifest = name(number)
        commit = {
            "step_id": step,
            "manifest": manifest,
            "attempt": 1,
            "fingerprint": {},
            "record": {"seconds": 1.0},
        }
        attempt, held = root / "steps" / step / "attempts" / "1", root / "objects" / manifest
        attempt.mkdir(parents=True)
        held.mkdir(parents=True)
        (attempt / "lease").write_text("{}")
        (attempt / "end").write_text(json.dumps({"commit": commit, "at": 0}))
        (held / "MANIFEST.json").write_text("{}")
        (held / "rows.parquet").write_text("rows")


def name(number: int) -> tuple[str, str]:
    """Return the id of a step, and the digest of its object."""
    step, manifest = (
        hashlib.sha256(f"{kind}{number}".encode()).hexdigest() for kind in ("step", "object")
    )
    return step, manifest


def in_bucket(steps: int, runs: int, endpoint: str) -> None:
    """Fill a bucket, and time the commands. Without an endpoint of a server, moto serves."""
    server = None
    with socket.socket() as found, tempfile.TemporaryDirectory() as folder:
        if not endpoint:
            found.bind(("127.0.0.1", 0))
            port = found.getsockname()[1]
            found.close()
            endpoint = f"http://127.0.0.1:{port}"
            line = [sys.executable, "-m", "moto.server", "-p", str(port)]
            server = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "us-east-1"}
        os.environ |= {
            **keys,
            **os.environ,
            "AWS_ENDPOINT_URL": endpoint,
            "RATCHET_CACHE": str(Path(folder, "cache")),
        }
        try:
            fill(Path(folder, "made"), steps, runs)
            Store.open("s3://kept/empty")
            print(f"{'in a bucket':20}{'empty':>10}{f'{steps:,} steps':>16}")
            for command in COMMANDS:
                empty, full = (
                    seconds(command, f"s3://kept/{prefix}") for prefix in ("empty", "full")
                )
                print(f"{' '.join(command):20}{empty:10.2f}{full:16.2f}", flush=True)
        finally:
            if server:
                server.kill()


def fill(folder: Path, steps: int, runs: int) -> None:
    """Upload a store of so many steps, once the server answers."""
    import boto3

    make(folder, steps, runs)
    client, start = boto3.client("s3", region_name="us-east-1"), time.perf_counter()
    while True:
        try:
            client.create_bucket(Bucket="kept")
            break
        except client.exceptions.BucketAlreadyOwnedByYou:
            break
        except Exception:
            time.sleep(0.3)
            if time.perf_counter() - start > 60:
                raise

    def put(path: Path) -> int:
        client.put_object(
            Bucket="kept", Key=f"full/{path.relative_to(folder).as_posix()}", Body=path.read_bytes()
        )
        return 1

    with ThreadPoolExecutor(8) as pool:
        uploaded = sum(pool.map(put, [path for path in folder.rglob("*") if path.is_file()]))
    print(f"{uploaded:,} objects uploaded in {time.perf_counter() - start:.0f} s", flush=True)


def seconds(command: list[str], store: Path | str) -> float:
    start = time.perf_counter()
    line = [sys.executable, "-m", "orchestrator", *command, "--store", str(store)]
    subprocess.run(line, cwd=ROOT, check=True, capture_output=True)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
