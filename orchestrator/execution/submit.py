"""`ratchet submit`: run a recipe on a cluster through Ray's Jobs API.

The submission id is derived from the command and the program: the same command again follows the running job instead of
starting a second one. The job does not depend on this process.
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
from ray._private.authentication.authentication_token_setup import maybe_enable_token_auth_if_token_available
from ray.job_submission import JobSubmissionClient

from ratchet.errors import StoreError
from ratchet.orchestrator.execution.address import check_dashboard_address
from ratchet.orchestrator.execution.upload import collect_upload, summary_lines
from ratchet.orchestrator.job_interface.snapshot import Snapshot
from ratchet.orchestrator.job_interface.terminal import print_clean

RECONNECT_TIMEOUT = 600.0
"""Seconds without an answer after which following the job is given up. The job continues."""


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

    recipe, options: arguments of `ratchet run` on the cluster. code: the program and the recipe. files: the local files
    that the options name. environment: variables for the job. Raises InputError for what cannot be uploaded, and
    StoreError if no cluster answers.
    """
    upload = collect_upload(code, files)
    command = shlex.join(["python", "-m", "ratchet.orchestrator", "run", recipe, *options])
    for line in summary_lines(upload):
        print_clean(line)
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
                # The same command was given twice at this moment.
                print_clean(f"{job}: started by another process")
            else:
                print_clean(f"{job}: started: {command}")
    if not wait:
        print_clean(f"give the same command without --no-wait to follow it; `ray job stop {job}` stops it")
        return 0
    try:
        return _follow(client, job)
    except KeyboardInterrupt:
        print_clean(f"{job} continues; give the same command to follow it again; `ray job stop {job}` stops it")
        return 130


def _connect(address: str | None) -> JobSubmissionClient:
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    if address:
        # In Ray these take precedence over the argument.
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
    """Return the name of this command's job and whether it is running. If `first` ended, the next is `first`-2."""
    known = {job.submission_id: job.status for job in client.list_jobs() if job.submission_id}
    number, name = 1, first
    while name in known and known[name].is_terminal():
        number += 1
        name = f"{first}-{number}"
    return name, name in known


def _follow(client: JobSubmissionClient, name: str) -> int:
    """Print the log until the job ends, across lost connections, and return its exit status."""
    shown, lost_since = 0, 0.0

    async def print_log() -> None:
        """Print the log until the job ends, without the characters that were shown before."""
        nonlocal shown
        read = 0
        async for text in client.tail_job_logs(name):
            print_clean(text[max(0, shown - read) :], end="")
            read += len(text)
            shown = max(shown, read)

    while True:
        try:
            asyncio.run(print_log())
            info = client.get_job_info(name)
        except (OSError, RuntimeError, aiohttp.ClientError) as error:
            now = time.monotonic()
            if not lost_since:
                lost_since = now
                print_clean(f"connection lost ({' '.join(str(error).split())[:200]}); {name} continues; reconnecting")
            elif now - lost_since > RECONNECT_TIMEOUT:
                print_clean(
                    f"no answer for {RECONNECT_TIMEOUT / 60:.0f} minutes; give the same command again to follow {name}"
                )
                return 1
            time.sleep(min(30.0, 1.0 + (now - lost_since) / 4))
            continue
        if lost_since:
            print_clean("reconnected")
        lost_since = 0.0
        if info.status.is_terminal():
            break
        time.sleep(1.0)
    code = info.driver_exit_code
    print_clean(f"{name}: {info.status.lower()}" + (f" with exit status {code}" if code else ""))
    if info.status == "FAILED" and not code:
        print_clean((info.message or "").strip())  # the program was not started
    return {"SUCCEEDED": 0, "STOPPED": 130}.get(info.status, code or 1)
