"""Writer of FlagEmbedding's JSONL: `query`, `pos`, `neg`, and optionally `pos_scores`, `neg_scores`, `prompt`,
`reranker_prompt`."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ratchet.data.tables import TEACHER_SCORES


def write_lines(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Write lines, such as those of `make_line`."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


def make_line(
    mined: Mapping[str, Any], find: Callable[[Sequence[str]], list[str]]
) -> dict[str, Any]:
    """Convert a row of a mined table (ids of positives and negatives) to a line, with its teacher scores and
    instructions if it has any. find: ids -> their texts."""
    texts = find([*mined["positives"], *mined["negatives"]])
    positives = len(mined["positives"])
    line = {"query": mined["text"], "pos": texts[:positives], "neg": texts[positives:]}
    optional = {
        "pos_scores": mined.get(TEACHER_SCORES["positives"]),
        "neg_scores": mined.get(TEACHER_SCORES["negatives"]),
        "prompt": mined.get("task"),
        "reranker_prompt": mined.get("prompt"),
    }
    for name, value in optional.items():
        if value not in (None, ""):
            line[name] = value
    return line
