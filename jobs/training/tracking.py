"""The curves of a training run while it runs, as event files:

    tensorboard --logdir .ratchet/steps

Other services read the same files, for example `wandb sync --sync-tensorboard FOLDER`. The result of the step contains
the curves too, but not these files.
"""

import os
import time
from collections.abc import Mapping
from pathlib import Path

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.summary import scalar


class Tracker:
    """Writer of scalars. SummaryWriter of tensorboardX is not used: on a full disk its queue stops the training.

    folder: None: nothing is written. first_step: the next training step; TensorBoard hides the values that an earlier
    attempt wrote for it and for later steps. If the files cannot be written, the curves end, and the training goes on.
    """

    def __init__(self, folder: Path | None, name: str, first_step: int) -> None:
        self.writer: EventsWriter | None = None
        if folder is None:
            return
        own = folder / name.replace("/", "-")
        start = Event(step=first_step, session_log=SessionLog(status=SessionLog.START))
        try:
            own.mkdir(parents=True, exist_ok=True)
            # The names of event files contain only the second: two attempts within one second would share a file.
            self.writer = EventsWriter(str(own / "events"), f".{os.getpid()}-{first_step}")
            self._write(start)
        except OSError:
            self.writer = None

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log scalars. Services group names by the part before a slash."""
        now = time.time()
        events = []
        for name, value in values.items():
            events.append(Event(wall_time=now, step=step, summary=scalar(name, value)))
        self._write(*events)

    def _write(self, *events: Event) -> None:
        """Write events, and flush the file once."""
        if self.writer is None:
            return
        try:
            for event in events:
                self.writer.write_event(event)
            self.writer.flush()
        except OSError:
            self.writer = None
