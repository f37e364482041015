"""The number of threads with which a process computes on CPUs: as many as there are free cores.

Threads that share a core with another busy process make all others wait at the end of each parallel part: a training
with two threads on two cores, one of them busy, is slower than with one thread (benchmarks/limits/shared_machine.py).
"""

import os
import time
from pathlib import Path

import torch

SECONDS = 1.0
"""Time between two looks."""
STAT = Path("/proc/stat")
IDLE = (3, 4)
"""Columns of /proc/stat with the time in which a core does nothing, or waits for a disk."""
GUEST = 8
"""First of the last two columns, which are counted in others."""


class FreeCores:
    """Sets the number of threads to the number of cores that no other process uses. Fixed without /proc/stat."""

    def __init__(self, most: int) -> None:
        """most: largest number of threads."""
        self.most = most
        self.cores = sorted(os.sched_getaffinity(0)) if STAT.exists() else []
        self.last = self._read()
        torch.set_num_threads(most)

    def look(self) -> None:
        """Set the number of threads anew, if the last look is some time ago. Takes microseconds otherwise."""
        if not self.cores or self.most == 1 or time.monotonic() - self.last[0] < SECONDS:
            return
        now, busy, own = self._read()
        then, busy_then, own_then = self.last
        self.last = now, busy, own
        others = max(0.0, (busy - busy_then) - (own - own_then)) / (now - then)
        free = int(len(self.cores) - others + 0.5)
        threads = min(self.most, max(1, free))
        if threads != torch.get_num_threads():
            torch.set_num_threads(threads)

    def _read(self) -> tuple[float, float, float]:
        """Return the time, and the seconds of all processes and of this one on these cores, since some time ago."""
        busy = 0
        for line in STAT.read_text().splitlines() if self.cores else ():
            name, *columns = line.split()
            if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in self.cores:
                times = [int(column) for column in columns[:GUEST]]
                busy += sum(times) - sum(times[column] for column in IDLE)
        return time.monotonic(), busy / os.sysconf("SC_CLK_TCK"), time.process_time()
