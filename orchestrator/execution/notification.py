"""Notifications of a run: JSON that is posted to a URL when a step fails and when the run ends.

    event      step_failed, run_ended, or run_failed (an error outside a step ended the run, or it could not start)
    text       the event as a sentence, which chat services such as Slack and Mattermost show
    recipe, run, store, host, command, time (seconds since 1970)
    step, reason                                    step_failed only; run_failed has a reason too
    status, seconds, failures, numbers, report      run_ended only

A URL that does not answer is reported on the standard error. It delays the end of the command by half a minute at most.
"""

from __future__ import annotations

import json
import socket
import sys
import time
import urllib.request
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import Any

from ratchet.errors import InputError, describe
from ratchet.orchestrator.job_interface.clean_output import print_clean
from ratchet.orchestrator.reporting.formatting import format_duration

TRIES = 3
TIMEOUT = 10.0
PAUSE = 1.0
"""Attempts to post a notification, timeout of an attempt in seconds, and pause between attempts in seconds."""


class Notifier:
    """Context manager that posts the notifications of one run. Without a URL it does nothing."""

    def __init__(self, url: str | None, **about: Any) -> None:
        """about: the fields of every notification: `recipe`, `run`, `store`, `command`."""
        self.url = url or ""
        if self.url and not self.url.startswith(("http://", "https://")):
            raise InputError(
                f"--notify or RATCHET_NOTIFY: '{self.url[:20]}' given; expected a URL that begins with https:// or"
                " http://; correct it"
            )
        self.about = {"recipe": "", "run": None, "host": socket.gethostname(), **about}
        self.pool = ThreadPoolExecutor(1, thread_name_prefix="notify")
        self.sent = list[Future[None]]()

    def __enter__(self) -> Notifier:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):
            self.send(
                "run_failed",
                f"did not run: {describe(error).splitlines()[0]}",
                reason=describe(error),
            )
        wait(self.sent, TRIES * TIMEOUT)
        self.pool.shutdown(wait=False, cancel_futures=True)

    def step_failed(self, step: str, reason: str) -> None:
        self.send(
            "step_failed", f"step {step} failed: {reason.splitlines()[0]}", step=step, reason=reason
        )

    def run_ended(
        self, status: str, seconds: float, failures: Mapping[str, str], **more: Any
    ) -> None:
        text = f"{status} after {format_duration(seconds)}"
        self.send(
            "run_ended", text, status=status, seconds=seconds, failures=dict(failures), **more
        )

    def send(self, event: str, said: str, **details: Any) -> None:
        if self.url:
            text = f"ratchet {self.about['recipe']} {self.about['run'] or ''}".rstrip()
            payload = {
                "event": event,
                "text": f"{text}: {said}",
                "time": time.time(),
                **self.about,
                **details,
            }
            self.sent.append(self.pool.submit(self._post, json.dumps(payload).encode()))

    def _post(self, body: bytes) -> None:
        request = urllib.request.Request(self.url, body, {"Content-Type": "application/json"})
        for left in reversed(range(TRIES)):
            try:
                urllib.request.urlopen(request, timeout=TIMEOUT).close()
                return
            except (
                OSError,
                ValueError,
            ) as error:  # a refused connection, a status of 400 or more, a wrong URL
                if not left:
                    # The URL itself may hold a secret.
                    print_clean(
                        f"note: the notification was not sent: {describe(error)}", sys.stderr
                    )
                else:
                    time.sleep(PAUSE)
