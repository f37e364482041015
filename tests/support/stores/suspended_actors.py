"""Actors for models of concurrent programs: threads that stop before every operation on files or on a bucket, until the
model resumes or kills them."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import obstore
from obstore.exceptions import GenericError

from ratchet.orchestrator.store import Store

FILE_EVENTS = {
    "open",
    "os.rename",
    "os.mkdir",
    "os.remove",
    "os.rmdir",
    "os.link",
    "os.utime",
    "os.listdir",
    "os.scandir",
}

here = threading.local()
"""`actor`: the actor whose thread this is."""


class Killed(BaseException):
    """The actor was killed: nothing that it does from now on has an effect."""


class Actor:
    """A thread that stops before every operation on the store until it is given leave for more."""

    def __init__(
        self, process: int, store: Store, program: Callable[[Actor], None], what: str
    ) -> None:
        self.process, self.store, self.what = process, store, what
        self.leave: int | str = 0
        self.fault: int | str = 0
        """How the next operation fails: an error number; `after`: a request succeeds, but its answer is lost; `short`:
        of a text only a part is written. 0: it does not fail."""
        self.has_failed = False
        self.killed, self.ended = False, False
        self.error: BaseException | None = None
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        threading.Thread(target=self._run, args=(program,), daemon=True).start()

    def advance(self, operations: int | str) -> None:
        """Let the actor do so many operations, or one and those before the next whose name contains a text, or end."""
        if not self.ended:
            self.leave = operations
            self._go.release()
            assert self._stopped.acquire(timeout=60), f"{self.what}: blocked"

    def kill(self) -> None:
        self.killed = True
        self.advance(0)

    def gate(self, operation: str) -> None:
        """Wait for leave before an operation. Called in the actor's thread."""
        if not self.killed and (
            self.leave in operation if isinstance(self.leave, str) else self.leave == 0
        ):
            self._stopped.release()
            self._go.acquire()
        if self.killed:
            raise Killed
        if isinstance(self.leave, int):
            self.leave -= 1
        if isinstance(self.fault, int) and self.fault:
            number, self.fault, self.has_failed = self.fault, 0, True
            raise OSError(number, os.strerror(number), "injected")

    def take_fault(self, kind: str) -> bool:
        """Return whether the current operation fails in this way."""
        if self.fault != kind:
            return False
        self.fault, self.has_failed = 0, True
        return True

    def _run(self, program: Callable[[Actor], None]) -> None:
        self._go.acquire()
        here.actor = self
        try:
            if not self.killed:
                program(self)
        except Killed:
            pass
        except BaseException as error:
            if not self.killed:
                self.error = error
        here.actor = None
        self.ended = True
        self._stopped.release()


def gate(*operation: Any) -> None:
    if (actor := getattr(here, "actor", None)) is not None:
        actor.gate(" ".join(map(str, operation)))


class GatedObstore:
    """obstore with a gate before each request, and with answers that are lost."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(obstore, name)

        def call(*arguments: Any, **keywords: Any) -> Any:
            try:
                gate(name, *arguments[1:2])
            except OSError as error:
                raise GenericError(f"{error}, before the request") from None
            answer = function(*arguments, **keywords)
            actor = getattr(here, "actor", None)
            if actor is not None and actor.take_fault("after"):
                raise GenericError("injected, after the request")
            return answer

        return call


class InThread:
    """An executor that does its work in the actor's own thread, so that hypothesis can repeat a run."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __enter__(self) -> InThread:
        return self

    def __exit__(self, *_: object) -> None: ...

    def map(self, function: Callable[..., Any], *items: Any) -> Iterator[Any]:
        return iter([function(*item) for item in zip(*items, strict=False)])


_hooked = False
_write = os.write


def write_shortly(descriptor: int, content: Any) -> int:
    """os.write, which a signal or a full disk may end after a part."""
    actor = getattr(here, "actor", None)
    if actor is not None and len(content) > 1 and actor.take_fault("short"):
        content = content[: len(content) // 2]
    return _write(descriptor, content)


def hook_file_operations() -> None:
    """Put a gate before every operation on files. A hook cannot be removed; outside of actors it does nothing."""
    global _hooked
    if not _hooked:
        os.write = write_shortly
        sys.addaudithook(
            lambda event, details: gate(event, *details[:1]) if event in FILE_EVENTS else None
        )
        _hooked = True
