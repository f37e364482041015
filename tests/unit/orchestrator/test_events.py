"""Files of events on disks that are nearly full, and with lines that are no events."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from ratchet.orchestrator.atomic_file import append_json, read_json_lines
from ratchet.orchestrator.run_log import RunLog


def test_a_line_that_does_not_fit_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "events.jsonl"
    append_json(file, {"n": 1})
    write = os.write
    left = 10

    def write_some(descriptor: int, line: bytes) -> int:
        """As on a disk with `left` bytes."""
        nonlocal left
        if not left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = write(descriptor, line[:left])
        left -= written
        return written

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write_some)
        with pytest.raises(OSError, match="No space left"):
            append_json(file, {"text": "longer than what is left"})
    append_json(file, {"n": 2})
    assert read_json_lines(file) == [{"n": 1}, {"n": 2}]


@pytest.mark.parametrize("line", ["{}", "[]", "null", '{"event": "end"}', "{", '{"t": 1}'])
def test_what_is_no_event_is_skipped(tmp_path: Path, line: str) -> None:
    log = RunLog(tmp_path)
    (tmp_path / "events.jsonl").write_text(line + "\n")
    assert log.find_end() == ""
    log.event("end", failures={}, interrupted=False)
    assert log.find_end() == "finished"
    assert len(log.events()) == 1
