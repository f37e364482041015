"""Two rounds of mining and finetuning: Ratchet's `retriever` with its defaults, compared with scripts that use other
libraries.

    pip install -e '.[dev,bench]'
    python -m benchmarks.quality.outcome --data generated eedi/ --seeds 3 [--only ratchet gist] [--queries 1500]

All methods start from MiniLM and get the same training, selection and test queries as a BEIR folder, which is split
anew for each seed. The scripts use sentence-transformers or FlagEmbedding. They mine 3 negatives per query, finetune
all weights for `--epochs` in batches of 64, mine again with the finetuned model, and finetune this model for the same
number of epochs. The learning rate of the first round is the best of `--rates` by MAP@25 on the selection queries. Of
the base and the models of both rounds, the best on the selection queries is kept. Ratchet runs as a user runs it:
`ratchet run retriever`, two iterations.

Each method is a separate process. The models are evaluated by sentence-transformers' vectors and pytrec_eval. `seconds`
is the time of everything that a method does, and `seconds, one rate` the time without the search for a learning rate.
`GB` is the peak of the proportional set sizes of all processes of a method. `--set` takes settings of Ratchet's run.
`fused` is the model fused with BM25 and the nearest training queries; for all methods this is computed by
`ratchet run retriever` with the model as base and no iteration.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.quality.repeat import make_parser, name_source, repeat
from benchmarks.quality.retrieval_sets import load, split, write_beir
from ratchet.data.retrieval import Query
from ratchet.data.retrieval.splits import find_seen
from ratchet.orchestrator.store import Store

WAYS = {
    "ratchet": "Ratchet",
    "ratchet-full": "Ratchet, method=full",
    "mnrl": "sentence-transformers, CachedMultipleNegativesRankingLoss",
    "gist": "sentence-transformers, CachedGISTEmbedLoss",
    "flag": "FlagEmbedding",
}
RATES = (5e-5, 1e-4, 2e-4)
BATCH, NEGATIVES, WINDOW = 64, 3, (2, 200)
METRICS = ("map@25", "ndcg@10", "r@25", "seen", "unseen", "seconds", "seconds, one rate", "GB")
FUSED = {
    "fused": "map@25",
    "fused r@25": "r@25",
    "fused seen": "seen/map@25",
    "fused unseen": "unseen/map@25",
}
"""Column -> metric of the row of Ratchet's table whose ranking is that of several systems."""

Trainer = Callable[[Path, list[tuple[str, str, list[str]]], float, int, Path], Path]
"""Finetunes a model on (query, positive, negatives) at a learning rate for some epochs, and returns the folder of the
result."""


def main() -> None:
    parser = make_parser(__doc__, list(WAYS), "outcome.jsonl")
    parser.add_argument(
        "--work", type=Path, default=Path("outcome-work"), help="folder for data and models"
    )
    parser.add_argument(
        "--epochs", type=int, default=4, help="epochs of each finetune, by all ways"
    )
    parser.add_argument(
        "--rates", type=float, nargs="+", default=RATES, help="learning rates tried by hand"
    )
    parser.add_argument("--way", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.way:
        print(json.dumps(run_way(given.way, given.work, given.epochs, given.rates, given.set)))
    else:
        # Part of the name, since rows of other epochs and rates are others.
        given.out = given.out.with_stem(
            "-".join([f"{given.out.stem}-{given.epochs}-epochs", *map(str, given.rates)])
        )
        repeat(
            given, (*METRICS, *FUSED), lambda source, way, seed: measure(given, source, way, seed)
        )


def measure(given: argparse.Namespace, source: str, way: str, seed: int) -> dict[str, Any]:
    data = load(source)
    most = {"train": given.queries, "valid": given.held_out, "test": given.held_out}
    splits = split(data.queries, seed, most, given.unseen, 0.15)
    folder = given.work / f"{name_source(source)}-{seed}"
    if not (folder / "beir").exists():
        write_beir(folder / "beir", list(data.corpus), splits)
    shutil.rmtree(folder / way, ignore_errors=True)
    (folder / way).mkdir()
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "benchmarks.quality.outcome",
        "--way",
        way,
        "--work",
        str(folder),
    ]
    command += ["--epochs", str(given.epochs), "--rates", *map(str, given.rates)]
    started = time.perf_counter()
    with (folder / way / "stderr.txt").open("w") as errors:
        child = subprocess.Popen(
            [*command, "--set", *given.set], stdout=subprocess.PIPE, stderr=errors, text=True
        )
        peak = watch_memory(child)
    seconds = time.perf_counter() - started
    if child.returncode or child.stdout is None:
        sys.exit(f"{WAYS[way]}: failed; see {folder / way / 'stderr.txt'}")
    answer = json.loads(child.stdout.read().splitlines()[-1])
    row = {
        "seconds": seconds,
        "seconds, one rate": seconds - answer["searching"],
        "GB": peak / 1e9,
        **answer,
    }
    row |= evaluate(Path(answer["model"]), folder / "beir", splits["train"], splits["test"])
    return row | evaluate_fused(answer["model"], folder / "beir", folder / way / "fused")


def watch_memory(child: subprocess.Popen[str]) -> int:
    """Wait until a process ends. Return the peak of the memory of it and all its descendants in bytes, where a shared
    page counts once."""
    import psutil

    peak, root = 0, psutil.Process(child.pid)
    while child.poll() is None:
        total = 0
        try:
            for process in (root, *root.children(recursive=True)):
                total += process.memory_full_info().pss
        except psutil.Error:
            continue  # one has ended meanwhile
        peak = max(peak, total)
        time.sleep(1)
    return peak


def evaluate(
    model: Path, beir: Path, train: Sequence[Query], test: Sequence[Query]
) -> dict[str, float]:
    """Return the metrics of test queries over the whole corpus."""
    import pytrec_eval

    corpus, names = read_corpus(beir)
    query_QD, corpus_ND = (
        encode(model, texts) for texts in ([query.text for query in test], corpus)
    )
    scores_QN = (query_QD @ corpus_ND.T).astype(float)
    qrels = {query.id: dict.fromkeys(query.positives, 1) for query in test}
    run = {
        query.id: dict(zip(names, row.tolist(), strict=True))
        for query, row in zip(test, scores_QN, strict=True)
    }
    measures = {"map@25": "map_cut_25", "ndcg@10": "ndcg_cut_10", "r@25": "recall_25"}
    found = pytrec_eval.RelevanceEvaluator(
        qrels, {"map_cut.25", "ndcg_cut.10", "recall.25"}
    ).evaluate(run)
    rows = {
        name: np.array([found[query.id][key] for query in test]) for name, key in measures.items()
    }
    seen_Q = find_seen(train, test)
    values = {name: float(row_Q.mean()) for name, row_Q in rows.items()}
    return values | {
        "seen": rows["map@25"][seen_Q].mean(),
        "unseen": rows["map@25"][~seen_Q].mean(),
    }


def evaluate_fused(model: str, beir: Path, store: Path) -> dict[str, float]:
    """Return the metrics of a model beside BM25 and the nearest training queries."""
    _, metrics = run_ratchet(beir, store, [f"base={model}", "iterations=0", "knn=true"])
    fused = metrics["zero_shot/evaluate_blended_all"]
    return {
        name: fused[key] for name, key in FUSED.items() if key in fused
    }  # all test queries may be unseen


def read_corpus(beir: Path) -> tuple[list[str], list[str]]:
    """Return texts and ids."""
    rows = [json.loads(line) for line in (beir / "corpus.jsonl").read_text().splitlines()]
    return [row["text"] for row in rows], [row["_id"] for row in rows]


def encode(model: Path, texts: Sequence[str]) -> np.ndarray:
    from sentence_transformers import SentenceTransformer

    found: np.ndarray = SentenceTransformer(str(model)).encode(
        list(texts), normalize_embeddings=True
    )
    return found


def run_way(
    way: str, folder: Path, epochs: int, rates: Sequence[float], settings: Sequence[str]
) -> dict[str, Any]:
    """Return the folder of the final model, and the seconds of the search for a learning rate."""
    if way.startswith("ratchet"):
        own = ["iterations=2", f"finetune_embedder.epochs={epochs}", *settings]
        own += ["method=full"] if way == "ratchet-full" else []
        store = folder / way / "store"
        found, _ = run_ratchet(folder / "beir", store, own)
        last = found.get("iter1/merge_embedder") or found["iter1/finetune_embedder"]
        return {"model": str(Store.open(store).path(last, "model")), "searching": 0.0}
    trainers: dict[str, Trainer] = {
        "mnrl": train_peer,
        "gist": train_peer_guided,
        "flag": train_flag_embedding,
    }
    return run_by_hand(folder / "beir", folder / way, trainers[way], epochs, rates)


def run_ratchet(
    beir: Path, store: Path, settings: Sequence[str]
) -> tuple[dict[str, str], dict[str, Mapping[str, float]]]:
    """Run `retriever`. Return the fingerprints and the metrics of its steps."""
    command = [
        sys.executable,
        "-m",
        "ratchet.orchestrator",
        "run",
        "retriever",
        "--store",
        str(store),
    ]
    # Ray's workers have a low priority, which would tell where others use the machine too.
    environment = {**os.environ, "RAY_worker_niceness": "0"}
    command += [text for value in (f"data={beir}", *settings) for text in ("--set", value)]
    subprocess.run(command, check=True, stdout=sys.stderr, env=environment)
    (plan,), (report,) = store.glob("runs/*/plan.json"), store.glob("runs/*/report.json")
    found = {one["name"]: one["object"] for one in json.loads(plan.read_text())["steps"]}
    return found, {one["name"]: one["metrics"] for one in json.loads(report.read_text())["steps"]}


def run_by_hand(
    beir: Path, work: Path, train: Trainer, epochs: int, rates: Sequence[float]
) -> dict[str, Any]:
    from ratchet.data.formats import beir as beir_files
    from ratchet.models.model_files import MINILM, resolve

    data = beir_files.read(beir)
    text_of = {one.id: one.text for one in data.corpus}
    splits = {
        name: [one for one in data.queries if one.split == name] for name in ("train", "valid")
    }
    pairs = [(query.text, text_of[name]) for query in splits["train"] for name in query.positives]
    base, searching, rate = resolve(MINILM), 0.0, 0.0
    found = {base: judge(base, splits["valid"], text_of)}
    for number in range(2):
        start = max(found, key=lambda model: found[model])
        mined = mine(start, pairs, list(text_of.values()))
        for tried in (rate,) if rate else rates:
            began = time.perf_counter()
            model = train(start, mined, tried, epochs, work / f"round{number}-{tried:g}")
            found[model] = judge(model, splits["valid"], text_of)
            if not rate:
                searching += time.perf_counter() - began
        best = max(found, key=lambda model: found[model])
        print(f"round {number}: {best} is best, {found[best]:.4f}", file=sys.stderr)
        if not rate:
            rate = float(best.name.partition("-")[2]) if best != base else min(rates)
            searching *= 1 - 1 / len(rates)
    return {"model": str(max(found, key=lambda model: found[model])), "searching": searching}


def judge(model: Path, queries: Sequence[Query], text_of: dict[str, str]) -> float:
    """Return MAP@25 of the selection queries, by sentence-transformers."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

    evaluator = InformationRetrievalEvaluator(
        {query.id: query.text for query in queries},
        dict(text_of),
        {query.id: set(query.positives) for query in queries},
        map_at_k=[25],
        write_csv=False,
    )
    return float(evaluator(SentenceTransformer(str(model)))["cosine_map@25"])


def mine(
    model: Path, pairs: list[tuple[str, str]], corpus: list[str]
) -> list[tuple[str, str, list[str]]]:
    """Return each pair with negatives that score below 0.95 of its positive, drawn by sentence-transformers."""
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.util import mine_hard_negatives

    columns = {"anchor": [query for query, _ in pairs], "positive": [right for _, right in pairs]}
    rows = mine_hard_negatives(
        Dataset.from_dict(columns),
        SentenceTransformer(str(model)),
        corpus=corpus,
        range_min=WINDOW[0],
        range_max=WINDOW[1],
        relative_margin=0.05,
        num_negatives=NEGATIVES,
        sampling_strategy="random",
        output_format="n-tuple",
        verbose=False,
    )
    names = [f"negative_{n + 1}" for n in range(NEGATIVES)]
    return [(row["anchor"], row["positive"], [row[name] for name in names]) for row in rows]


def train_peer(
    start: Path,
    mined: list[tuple[str, str, list[str]]],
    rate: float,
    epochs: int,
    out: Path,
    guided: bool = False,
) -> Path:
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer import losses
    from sentence_transformers.training_args import BatchSamplers

    columns: dict[str, list[str]] = {
        "anchor": [row[0] for row in mined],
        "positive": [row[1] for row in mined],
    }
    columns |= {f"negative_{n}": [row[2][n] for row in mined] for n in range(NEGATIVES)}
    model = SentenceTransformer(str(start))
    if guided:
        guide = SentenceTransformer(str(start))
        loss: Any = losses.CachedGISTEmbedLoss(model, guide, temperature=0.05)
    else:
        loss = losses.CachedMultipleNegativesRankingLoss(model, scale=20.0)
    arguments = SentenceTransformerTrainingArguments(
        str(out / "trainer"),
        num_train_epochs=epochs,
        per_device_train_batch_size=BATCH,
        learning_rate=rate,
        lr_scheduler_type="cosine",
        warmup_steps=0.1,
        batch_sampler=BatchSamplers.NO_DUPLICATES,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )
    SentenceTransformerTrainer(
        model=model, args=arguments, train_dataset=Dataset.from_dict(columns), loss=loss
    ).train()
    model.save(str(out))
    return out


def train_peer_guided(
    start: Path, mined: list[tuple[str, str, list[str]]], rate: float, epochs: int, out: Path
) -> Path:
    return train_peer(start, mined, rate, epochs, out, guided=True)


def train_flag_embedding(
    start: Path, mined: list[tuple[str, str, list[str]]], rate: float, epochs: int, out: Path
) -> Path:
    """Finetune by FlagEmbedding's module, at its temperature of 0.02."""
    data = out.with_suffix(".jsonl")
    rows = [
        {"query": query, "pos": [right], "neg": wrong, "prompt": ""}
        for query, right, wrong in mined
    ]
    data.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    values = {
        "model_name_or_path": start,
        "train_data": data,
        "output_dir": out,
        "train_group_size": 1 + NEGATIVES,
        "query_max_len": 256,
        "passage_max_len": 256,
        "sentence_pooling_method": "mean",
        "normalize_embeddings": True,
        "num_train_epochs": epochs,
        "per_device_train_batch_size": BATCH,
        "learning_rate": rate,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 0.1,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
    }
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "FlagEmbedding.finetune.embedder.encoder_only.base",
    ]
    command += [text for name, value in values.items() for text in (f"--{name}", str(value))]
    subprocess.run(command, check=True, stdout=sys.stderr)
    for name in ("modules.json", "1_Pooling", "2_Normalize", "sentence_bert_config.json"):
        if (start / name).is_dir():
            shutil.copytree(start / name, out / name)
        elif (start / name).exists():
            shutil.copy(start / name, out / name)
    return out


if __name__ == "__main__":
    main()
