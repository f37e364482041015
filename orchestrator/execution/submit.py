"""`ratchet submit`: run a recipe on a cluster through Ray's Jobs API.

The submission id is derived from the command and the code. The same command therefore follows the running job instead
of starting a second one. The job does not depend on this process.

Uploaded are a snapshot of the code of Ratchet and the recipe, and the settings file; no data or results. Files that
look like secrets are refused, since everyone with access to the cluster's jobs can read the upload.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shlex
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import aiohttp
from ray._private.authentication.authentication_token_setup import (
    maybe_enable_token_auth_if_token_available,
)
from ray.job_submission import JobSubmissionClient

from ratchet.errors import InputError, StoreError
from ratchet.orchestrator.execution.cluster import check_dashboard_address
from ratchet.orchestrator.job_interface.clean_output import print_clean
from ratchet.orchestrator.job_interface.snapshot import Snapshot
from ratchet.orchestrator.secrets import contains_secret, is_secret_file


def submit(
    recipe: str,
    options: Sequence[str],
    code: Snapshot,
    files: Sequence[Path],
    *,
    address: str | None,
    environment: Mapping[str, str],
    wait: bool,
) -> int:
    """Upload the program, start or find the job, follow its log if `wait`, and return its exit status.

    recipe, options: arguments of `ratchet run` on the cluster. code: snapshot of Ratchet and the recipe. files: local
    files that the options name. environment: environment variables of the job. Raises InputError for files that cannot
    be uploaded and for an address where nothing answers, and StoreError if the cluster refuses the connection.
    """
    upload = collect_upload(code, files)
    command = shlex.join(["python", "-m", "ratchet.orchestrator", "run", recipe, *options])
    size = sum(map(len, upload.files.values()))
    print_clean(f"upload: {len(upload.files)} files, {size / 1e3:.1f} kB")
    client = _connect(address)
    digest = hashlib.sha256(f"{command}\0{upload.digest}".encode()).hexdigest()
    job, running = _find_job(client, f"ratchet-{Path(recipe).stem}-{digest[:12]}")
    if running:
        print_clean(f"{job}: is running already")
    else:
        with tempfile.TemporaryDirectory(prefix="ratchet-") as folder:
            upload.write(Path(folder))
            try:
                client.submit_job(
                    entrypoint=command,
                    submission_id=job,
                    runtime_env={"working_dir": folder, "env_vars": dict(environment)},
                    metadata={"recipe": recipe},
                )
            except RuntimeError as error:
                if "already exists" not in str(error):
                    raise
                # Another process has given the same command at this moment.
                print_clean(f"{job}: started by another process")
            else:
                print_clean(f"{job}: started: {command}")
    if not wait:
        print_clean(
            f"give the same command without --no-wait to follow it; `ray job stop {job}` stops it"
        )
        return 0
    try:
        return _follow(client, job)
    except KeyboardInterrupt:
        print_clean(
            f"{job} continues; give the same command to follow it again; `ray job stop {job}` stops it"
        )
        return 130


def collect_upload(code: Snapshot, named: Sequence[Path]) -> Snapshot:
    """Return the code together with the `named` files (settings), which are placed in the top folder.

    Raises InputError if a named file is missing, and for likely secrets.
    """
    files = dict(code.files)
    where = {path.name: path for path in named}
    for path in named:
        if not path.is_file():
            raise InputError(f"{path}: no such file; expected one to upload; correct the path")
        files[path.name] = path.read_bytes()
    for name, content in files.items():
        if is_secret_file(Path(name).name) or contains_secret(content):
            raise InputError(
                f"{where.get(name, name)}: looks like a secret; expected none among the uploaded files;"
                " move it out of the program; put what jobs need on the cluster (docs/cluster.md)"
            )
    return Snapshot(files)


def _connect(address: str | None) -> JobSubmissionClient:
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    if address:
        # In Ray, these variables take precedence over the argument.
        for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
            os.environ.pop(name, None)
    where = address or os.environ.get("RAY_API_SERVER_ADDRESS") or os.environ.get("RAY_ADDRESS")
    check_dashboard_address(where)
    maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
    try:
        return JobSubmissionClient(address)
    except (ConnectionError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise StoreError(
            f"submit --address {where or '(none)'}: {reason}; expected the address of a cluster's dashboard, such as"
            " http://127.0.0.1:8265 through `ray dashboard cluster.yaml`; check that it is running and that"
            " ~/.ray/auth_token holds its token"
        ) from None


def _find_job(client: JobSubmissionClient, first: str) -> tuple[str, bool]:
    """Return the id of this command's job and whether it is there and not ended. The id after `first` is `first`-2."""
    known = {}
    for job in client.list_jobs():
        known[job.submission_id] = job.status
    number = 1
    name = first
    while name in known and known[name].is_terminal():
        number += 1
        name = f"{first}-{number}"
    return name, name in known


def _follow(client: JobSubmissionClient, name: str) -> int:
    """Print the log until the job ends, and return the job's exit status; 1 if the connection is lost."""

    async def print_log() -> None:
        async for text in client.tail_job_logs(name):
            print_clean(text, end="")

    try:
        asyncio.run(print_log())
        info = client.get_job_info(name)
        while not info.status.is_terminal():
            time.sleep(1.0)
            info = client.get_job_info(name)
    except (OSError, RuntimeError, aiohttp.ClientError) as error:
        reason = " ".join(str(error).split())[:200]
        print_clean(
            f"connection lost ({reason}); {name} continues; give the same command again to follow it"
        )
        return 1
    code = info.driver_exit_code
    print_clean(f"{name}: {info.status.lower()}" + (f" with exit status {code}" if code else ""))
    if info.status == "FAILED" and not code:
        print_clean((info.message or "").strip())  # the program was not started
    return {"SUCCEEDED": 0, "STOPPED": 130}.get(info.status, code or 1)
