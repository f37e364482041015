"""`ratchet submit`: a run on a cluster, through Ray's Jobs API.

The submission's id is made from the command and the program: the same command again follows the job that runs, and
does not start a second. The job goes on whatever becomes of this process.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator import shipment
from orchestrator.errors import StoreError

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

LOST_FOR = 600.0
"""Seconds without an answer after which the connection is given up; the job is not."""

Say = Callable[[str], None]


def submit(
    recipe: str,
    options: Sequence[str],
    files: Sequence[Path],
    *,
    address: str | None,
    environment: Mapping[str, str],
    wait: bool,
    say: Say,
) -> int:
    """Uploads, starts or finds the job, follows its log unless told not to; returns its exit status.

    recipe, options: of `ratchet run`, as they are to stand there. files: what they name here. environment: variables
    for the job. Raises InputError for what cannot be uploaded, and StoreError where no cluster answers.
    """
    packed = shipment.pack(Path(__file__).resolve().parents[1], files)
    command = shlex.join(["python", "-m", "orchestrator", "run", recipe, *options])
    for line in packed.lines():
        say(line)
    say(f"{'in all':20}{len(packed.files):5} files{packed.bytes / 1e3:10.1f} kB")
    client = _client(address)
    digest = hashlib.sha256(f"{command}\0{packed.digest()}".encode()).hexdigest()
    job, running = _job(client, f"ratchet-{Path(recipe).stem}-{digest[:12]}")
    if running:
        say(f"{job}: runs already")
    else:
        with tempfile.TemporaryDirectory(prefix="ratchet-") as folder:
            packed.lay_out(Path(folder))
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
                # Somebody gave the same command at this moment.
                say(f"{job}: was started by another at this moment")
            else:
                say(f"{job}: started: {command}")
    if not wait:
        say(f"the same command without --no-wait follows it; `ray job stop {job}` stops it")
        return 0
    try:
        return _follow(client, job, say)
    except KeyboardInterrupt:
        say(f"{job} goes on; the same command follows it again; `ray job stop {job}` stops it")
        return 130


def _client(address: str | None) -> JobSubmissionClient:
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    if address:
        # Ray lets these win over what it is told.
        for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
            os.environ.pop(name, None)
    from ray._private.authentication.authentication_token_setup import maybe_enable_token_auth_if_token_available
    from ray.job_submission import JobSubmissionClient

    maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
    where = address or os.environ.get("RAY_API_SERVER_ADDRESS") or os.environ.get("RAY_ADDRESS")
    try:
        return JobSubmissionClient(address)
    except (ConnectionError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise StoreError(
            f"submit --address {where or '(none)'}: {reason}; expected the address of a cluster's dashboard, such as"
            " http://127.0.0.1:8265 through `ray dashboard cluster.yaml`; see that it runs and that the token in"
            " ~/.ray/auth_token is its own"
        ) from None


def _job(client: JobSubmissionClient, first: str) -> tuple[str, bool]:
    """The name of this command's job, and whether it runs: of one that ended, the next is `first`-2."""
    known = {job.submission_id: job.status for job in client.list_jobs() if job.submission_id}
    number, name = 1, first
    while name in known and known[name].is_terminal():
        number += 1
        name = f"{first}-{number}"
    return name, name in known


class _Log:
    """A job's log, copied once, however often it is read from its beginning."""

    def __init__(self) -> None:
        self.shown = 0
        """Characters."""

    async def follow(self, client: JobSubmissionClient, name: str) -> None:
        """Until the job ends. Raises what a lost connection raises."""
        read = 0
        async for text in client.tail_job_logs(name):
            sys.stdout.write(text[max(0, self.shown - read) :])
            sys.stdout.flush()
            read += len(text)
            self.shown = max(self.shown, read)


def _follow(client: JobSubmissionClient, name: str, say: Say) -> int:
    """Copies the job's log until it ends, across lost connections; the exit status."""
    import aiohttp

    log, lost_since = _Log(), 0.0
    while True:
        try:
            asyncio.run(log.follow(client, name))
            info = client.get_job_info(name)
        except (OSError, RuntimeError, aiohttp.ClientError) as error:
            now = time.monotonic()
            if not lost_since:
                lost_since = now
                say(f"connection lost ({' '.join(str(error).split())[:200]}); {name} goes on; trying again")
            elif now - lost_since > LOST_FOR:
                say(f"no answer for {LOST_FOR / 60:.0f} minutes; give the same command again to follow {name}")
                return 1
            time.sleep(min(30.0, 1.0 + (now - lost_since) / 4))
            continue
        if lost_since:
            say("connected again")
        lost_since = 0.0
        if info.status.is_terminal():
            break
        time.sleep(1.0)
    code = info.driver_exit_code
    say(f"{name}: {info.status.lower()}" + (f" with exit status {code}" if code else ""))
    if info.status == "FAILED" and not code:
        say((info.message or "").strip())  # it did not come as far as the program
    return {"SUCCEEDED": 0, "STOPPED": 130}.get(info.status, code or 1)
