"""What a person adds to a run by `ratchet note`: in table, report and status, beside numbers that stay as they were."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ratchet.errors import InputError
from ratchet.orchestrator.cli.main import main
from ratchet.orchestrator.remarks import FILE, parse_remark
from ratchet.orchestrator.reporting.report import write_report
from ratchet.orchestrator.reporting.run_data import RunReport
from ratchet.orchestrator.run_log import RunLog
from ratchet.orchestrator.store import Store


@pytest.fixture
def run_log(tmp_path: Path) -> RunLog:
    """A finished run with two rows."""
    made = RunLog.begin(Store.open(str(tmp_path / "store")), "toy", {"command": "ratchet run toy"})
    made.write("plan.json", {"steps": []})
    made.event("end", failures=[], interrupted=False)
    rows = {"zero-shot": {"MAP@25": 0.2}, "iteration 1": {"MAP@25": 0.59}}
    report = RunReport("toy", made.run_id, "finished", 0.0, 1.0, "ratchet run toy", [], rows=rows)
    write_report(made.folder, report)
    return made


def note(run_log: RunLog, *words: str) -> int:
    store = str(run_log.folder.parents[1])
    return main(["note", run_log.run_id[:15], *words, "--store", store])


def find_table(run_log: RunLog) -> list[list[str]]:
    lines = (run_log.folder / "report.md").read_text().splitlines()
    rows = [line for line in lines if line.startswith("|")][:4]
    return [[cell.strip(" *") for cell in row.strip("|").split("|")] for row in rows]


def test_a_remark_is_shown_in_its_row_and_in_the_list_of_runs(
    run_log: RunLog, capsys: pytest.CaptureFixture[str]
) -> None:
    before = json.loads((run_log.folder / "report.json").read_text())
    assert note(run_log, "--row", "iteration 1", "lb=0.505", "early stop, epoch 3") == 0
    assert note(run_log, "all questions, <no> held-out ones") == 0
    table = find_table(run_log)
    assert table[0] == ["", "MAP@25", "note", "lb"]
    assert table[2] == ["zero-shot", "0.2000", "–", "–"]
    assert table[3] == ["iteration 1", "0.5900", "early stop, epoch 3", "0.5050"]
    assert "all questions, \\<no\\> held-out ones" in (run_log.folder / "report.md").read_text()
    assert "all questions, &lt;no&gt; held-out" in (run_log.folder / "report.html").read_text()
    capsys.readouterr()
    main(["status", "--store", str(run_log.folder.parents[1])])
    shown = capsys.readouterr().out
    assert "iteration 1 lb 0.505, early stop, epoch 3; all questions" in shown
    after = json.loads((run_log.folder / "report.json").read_text())
    assert after.pop("remarks")["iteration 1"] == {
        "numbers": {"lb": 0.505},
        "words": "early stop, epoch 3",
    }
    assert before.pop("remarks") == {}
    assert after == before


def test_later_remarks_replace_earlier_ones(run_log: RunLog) -> None:
    for words in (["lb=0.4", "private=0.3", "first"], ["lb=0.5"], ["second"]):
        assert note(run_log, "--row", "iteration 1", *words) == 0
    with (run_log.folder / FILE).open("a") as file:
        file.write('{"a": 1}\n{"row": "iter')  # another version's line, and one that was cut off
    assert note(run_log, "--row", "zero-shot", "base") == 0
    table = find_table(run_log)
    assert table[0] == ["", "MAP@25", "note", "lb", "private"]
    assert table[2] == ["zero-shot", "0.2000", "base", "–", "–"]
    assert table[3] == ["iteration 1", "0.5900", "second", "0.5000", "0.3000"]


def test_what_is_no_remark_is_refused(run_log: RunLog, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("MAP@25", "note"):
        assert note(run_log, "--row", "iteration 1", f"{name}=0.99") == 2
        assert f"note {name}: a column of the table given" in capsys.readouterr().err
    assert note(run_log, "--row", "iteration 2", "lb=0.505") == 2
    assert "expected one of zero-shot, iteration 1; did you mean" in capsys.readouterr().err
    assert note(run_log) == 2
    assert "NAME=NUMBER|WORDS" in capsys.readouterr().err
    (run_log.folder / "report.json").unlink()  # as while it runs
    assert note(run_log, "--row", "iteration 1", "lb=0.505") == 2
    assert "its run has no table yet; expected a run that ended" in capsys.readouterr().err
    for wrong in ("lb=high", "lb=nan", "lb=-inf"):
        with pytest.raises(InputError, match=f"note {wrong}: no finite number; expected NAME=NUMB"):
            parse_remark([wrong])
    with pytest.raises(InputError, match="note: nothing given; expected numbers or words"):
        parse_remark(["", " "])
    assert parse_remark(["a = b", "lb@25=-1e-3", "2nd=3", "Ä=1"]).numbers == {
        "lb@25": -0.001,
        "2nd": 3.0,
        "Ä": 1.0,
    }
    assert str(parse_remark(["rank=12345678", "lb=0.50512345"])) == "rank 12345678, lb 0.50512345"
    assert not (run_log.folder / FILE).exists()
