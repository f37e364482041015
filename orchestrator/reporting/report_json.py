"""`report.json`: writes and reads the data of a run's report, for programs.

    {"schema": 1, "title": ..., "run_id": ..., "status": ...,
     "rows": {label: {column: {"value": ..., "interval": ...}}},
     "steps": [{"name": ..., "job": ..., "status": ..., "step_id": ..., "config": {...}, "metrics": {...}, ...}], ...}

The keys are the fields of `RunReport` and `StepReport`. `interval` is `Estimate.deviation`; it is missing if not known.
Later versions may add keys, which are ignored. If a key is removed or changes its meaning, the schema number is
increased.
"""

import json
from dataclasses import asdict, replace
from typing import Any

from pydantic import TypeAdapter

from ratchet.errors import DamagedError
from ratchet.orchestrator.reporting.formatting import Estimate
from ratchet.orchestrator.reporting.run_data import RunReport
from ratchet.orchestrator.run_log import RunLog

NAME = "report.json"
SCHEMA = 1


def write(data: RunReport) -> str:
    """Return the text of the file."""
    rows: dict[str, dict[str, Any]] = {}
    for label, row in data.rows.items():
        rows[label] = {}
        for name, cell in row.items():
            rows[label][name] = None if cell is None else {"value": float(cell)}
            deviation = getattr(cell, "deviation", None)
            if deviation is not None:
                rows[label][name]["interval"] = deviation
    about = asdict(replace(data, rows={}))
    return json.dumps({"schema": SCHEMA, **about, "rows": rows}, indent=1)


def read(run_log: RunLog) -> RunReport | None:
    """Return the report of a run; None if it is not written yet. Raises DamagedError for a file of another schema."""
    found = run_log.read(NAME)
    if found is None:
        return None
    if found.get("schema") != SCHEMA:
        raise DamagedError(
            f"{run_log.folder / NAME}: another schema; expected {SCHEMA}; give the run's command again"
        )
    rows = {}
    for label, row in found["rows"].items():
        rows[label] = {
            name: cell and Estimate(cell["value"], cell.get("interval"))
            for name, cell in row.items()
        }
    known: RunReport = TypeAdapter(RunReport).validate_python({**found, "rows": {}})
    return replace(known, rows=rows)
