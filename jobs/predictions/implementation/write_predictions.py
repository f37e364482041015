"""Implementation of `write_predictions`: writes the best documents of each query in three formats."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator

import pyarrow.compute as pc

from ratchet.data.formats.trec import escape, write_run
from ratchet.data.tables import read_shards, read_texts
from ratchet.jobs.predictions.write_predictions import FILES, Config, Inputs
from ratchet.orchestrator.job_interface import Context, Result


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    ranked = read_shards(inputs.ranking, ["id", "text", "documents", "scores"])
    listed = pc.list_flatten(pc.list_slice(ranked["documents"], 0, config.top))
    text_of = read_texts(inputs.corpus, listed)
    table, lines, trec = (context.out / name for name in FILES)

    def read() -> Iterator[tuple[str, str, list[tuple[str, float]]]]:
        for row in (row for batch in ranked.to_batches(256) for row in batch.to_pylist()):
            yield row["id"], row["text"], list(zip(row["documents"], row["scores"], strict=True))[: config.top]

    with table.open("w", encoding="utf-8", newline="") as table_file, lines.open("w", encoding="utf-8") as file:
        rows = csv.writer(table_file, lineterminator="\n")
        rows.writerow(config.columns)
        for query, asked, best in read():
            names = [name for name, _ in best]
            rows.writerow([query, " ".join(map(escape, names))])
            texts = zip(best, text_of.find(names), strict=True)
            documents = [{"id": name, "score": score, "text": text} for (name, score), text in texts]
            file.write(json.dumps({"id": query, "query": asked, "documents": documents}, ensure_ascii=False) + "\n")
    write_run(trec, ((query, best) for query, _, best in read()), config.tag)
    return Result({"queries": len(ranked), "documents": len(listed)})
