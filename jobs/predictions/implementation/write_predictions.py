"""Writes the first documents of each query in three formats."""

from __future__ import annotations

import csv
import json

from ratchet.data.formats.trec import escape, write_run
from ratchet.data.tables import read_listed, read_shards, read_texts
from ratchet.jobs.predictions.write_predictions import FILES, Config, Inputs
from ratchet.orchestrator.job_interface import Context, Result


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    text_of = read_texts(inputs.corpus, read_listed(inputs.ranking))
    ranked = read_shards(inputs.ranking, ["id", "text", "documents", "scores"]).to_pylist()
    best = [list(zip(row["documents"], row["scores"], strict=True))[: config.top] for row in ranked]
    table, lines, trec = (context.out / name for name in FILES)
    with table.open("w", encoding="utf-8", newline="") as table_file, lines.open("w", encoding="utf-8") as file:
        rows = csv.writer(table_file, lineterminator="\n")
        rows.writerow(config.columns)
        for row, own in zip(ranked, best, strict=True):
            names = [name for name, _ in own]
            rows.writerow([row["id"], " ".join(map(escape, names))])
            texts = zip(own, text_of.find(names), strict=True)
            documents = [{"id": name, "score": score, "text": text} for (name, score), text in texts]
            line = {"id": row["id"], "query": row["text"], "documents": documents}
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
    write_run(trec, ((row["id"], own) for row, own in zip(ranked, best, strict=True)), config.tag)
    return Result({"queries": len(ranked), "documents": sum(map(len, best))})
