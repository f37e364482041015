"""Ratchet: iterated finetuning of retrievers and small LLMs as resumable recipes on Ray.

Everything is imported as `ratchet.<folder>`: `ratchet.jobs`, `ratchet.models`, `ratchet.data`. In a checkout the
folders lie at the top, and this package holds a symbolic link to each. A file of the user's own that is called
`data.py` or `models.py` is therefore never mistaken for a part of Ratchet, nor the other way round.

    import ratchet

    run = ratchet.run("retriever", data="pairs.jsonl", iterations=1)
    run.table, run.best, run.report, run.steps["iter0/mine"].metrics
"""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    # This file is part of the code of every step: what may change lies elsewhere.
    return import_module("ratchet.public_names").find(name)
