"""The cost of distributing work over machines: embedding, mining, scoring, training and metrics on several Ray nodes on
this machine.

    python -m benchmarks.orchestrator.nodes [--questions 1500] [--rounds 1]
    python -m benchmarks.orchestrator.nodes --nodes 1,2,4,8 --share 0.25

Every case has four workers of one thread each, on the given number of Ray nodes (each with its own address, raylet and
processes). The work and the cores are therefore the same, and only the distribution differs. With `--share` each node
stands for a machine: a control group of the kernel limits it to this share of a core (needs root and cgroups 1), and it
has one worker. The table then shows the efficiency, seconds on one node / (nodes x seconds). The seconds of a step are
those in its result, and include the start and the imports of its workers. If there are several rounds, the first one is
left out of the ratios, since it fills the page cache.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from ratchet.orchestrator.store import Store
from tests.support.clusters.nodes import Nodes, environment_of, processes

ROOT = Path(__file__).resolve().parents[2]
WORKERS = 4
GROUPS = Path("/sys/fs/cgroup/cpu")
RECIPE = '''
from pathlib import Path
from ratchet.jobs.retrieval import embed, finetune_embedder, mine, prepare, rerank
from ratchet.jobs.statements import prepare_papers
from ratchet.jobs.pretrained import pretrained
from ratchet.orchestrator.step import Row, Source, Summary, step
from ratchet.recipes.theorems import evaluate

def spread(*, questions: int = 1000, papers: str = "", reranker: str = "") -> Summary:
    """Embed, mine, score, train, and rank all against all."""
    model = pretrained("sentence-transformers/all-MiniLM-L6-v2")
    made = step("prepare", prepare.JOB, questions=questions, shard_rows=max(1, questions // 8))
    queries = step("embed", embed.JOB, model=model, texts=made["train"], role="query")
    corpus = step("embed_corpus", embed.JOB, model=model, texts=made["corpus"], role="passage")
    mined = step("mine", mine.JOB, queries=made["train"], corpus=made["corpus"], query_embeddings=queries,
                 corpus_embeddings=corpus, window=(1, 40), num_negatives=8)
    scored = step("rerank", rerank.JOB, model=Source(Path(reranker), label="reranker"), lists=mined,
                  corpus=made["corpus"])
    trained = step("train", finetune_embedder.JOB, base=model, mined=mined, corpus=made["corpus"], epochs=1,
                   num_negatives=4, batch_size=64)
    split = step("prepare_papers", prepare_papers.JOB, papers=Source(Path(papers), label="papers"),
                 test_fraction=0.9, shard_rows=max(1, questions // 2))
    ranked = evaluate("metrics", split["test"], model, 64)
    return Summary([Row("all", {"MRR": ranked.metric("mrr")})], goals=[scored, trained])
'''
STEPS = {
    "embed": "embedding",
    "mine": "mining",
    "rerank": "scoring",
    "train": "training",
    "metrics/embed": "embedding statements",
    "metrics/evaluate": "metrics",
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--questions", type=int, default=1500)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--nodes", default="1,2,4", help="numbers of nodes")
    parser.add_argument("--share", type=float, help="of a core, which each node has")
    given = parser.parse_args()
    counts = [int(number) for number in given.nodes.split(",")]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "spread.py").write_text(RECIPE)
        write_papers(folder / "papers.jsonl", given.questions)
        write_reranker(folder / "reranker")
        found: dict[int, list[dict[str, float]]] = {nodes: [] for nodes in counts}
        for number in range(given.rounds):
            for nodes in counts:
                place = folder / f"{number}-{nodes}"
                place.mkdir()
                found[nodes].append(run(place, nodes, given.questions, given.share))
                line = ", ".join(
                    f"{label} {found[nodes][-1][step]:.1f}" for step, label in STEPS.items()
                )
                print(f"round {number + 1}, {nodes} nodes: {line}", flush=True)
    print(f"{'seconds on':24}" + "".join(f"{f'{nodes} nodes':>10}" for nodes in counts))
    for step, label in STEPS.items():
        values = [median(one[step] for one in found[nodes][1:] or found[nodes]) for nodes in counts]
        if given.share:
            shown = (
                f"{values[0] * counts[0] / (value * n):.2f}"
                for n, value in zip(counts, values, strict=True)
            )
            ratios = f"efficiency {', '.join(shown)}"
        else:
            ratios = f"{', '.join(f'{value / values[0]:.2f}' for value in values[1:])} of the first"
        print(f"{label:24}" + "".join(f"{value:10.1f}" for value in values) + f"   {ratios}")


def write_papers(path: Path, questions: int) -> None:
    """A paper is the questions about one mistake."""
    import json

    from benchmarks.misconceptions import format_query
    from benchmarks.misconceptions import generate_questions as generated

    of_rule: dict[str, list[str]] = {}
    for question in generated(questions, 1):
        for n, rule in enumerate(question.rules):
            if rule:
                of_rule.setdefault(rule, []).append(format_query(question, n))
    lines = [
        json.dumps({"arxiv_id": rule, "theorems": texts}) for rule, texts in sorted(of_rule.items())
    ]
    path.write_text("\n".join(lines) + "\n")


def write_reranker(folder: Path) -> None:
    """Write MiniLM as a cross-encoder. Its head is random: only the time of its scores counts."""
    import transformers

    from ratchet.models.model_files import MINILM, resolve

    path = resolve(MINILM)
    transformers.AutoModelForSequenceClassification.from_pretrained(
        path, num_labels=1
    ).save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(path).save_pretrained(folder)


def limit(node: subprocess.Popen[bytes], number: int, share: float) -> None:
    """Let a node and all that it starts use a share of a core."""
    group = GROUPS / f"ratchet-node-{number}"
    group.mkdir(exist_ok=True)
    (group / "cpu.cfs_period_us").write_text("100000")
    (group / "cpu.cfs_quota_us").write_text(str(round(share * 100_000)))
    for pid in processes(node.pid):
        (group / "cgroup.procs").write_text(str(pid))


def run(folder: Path, nodes: int, questions: int, share: float | None) -> dict[str, float]:
    """Return the seconds by step, from an empty store."""
    environment = environment_of(folder) | {"OMP_WAIT_POLICY": "PASSIVE"}
    cluster = Nodes(folder, environment, "--num-cpus=0", "--include-dashboard=false")
    try:
        workers = nodes if share else WORKERS
        for number in range(nodes):
            node = cluster.add(cpus=workers // nodes)
            if share:
                limit(node, number, share)
        settings = [f"questions={questions}", f"papers={folder.parent / 'papers.jsonl'}"]
        settings += [f"reranker={folder.parent / 'reranker'}"]
        jobs = ("embed", "mine", "rerank", "evaluate_papers", "finetune_embedder")
        settings += [f"{job}.{what}" for job in jobs for what in (f"workers={workers}", "cpus=1")]
        command = [sys.executable, "-m", "orchestrator", "run", str(folder.parent / "spread.py")]
        command += [part for setting in settings for part in ("--set", setting)]
        place = ["--store", str(folder / "store"), "--address", cluster.address]
        for _ in range(
            nodes
        ):  # nodes of one machine unpack the code into one folder, from which others then import
            done = subprocess.run(
                [*command, *place], cwd=ROOT, env=environment, capture_output=True, text=True
            )
            if done.returncode == 0:
                break
        assert done.returncode == 0, done.stdout + done.stderr
    finally:
        cluster.end()
    store, seconds = Store.open(folder / "store"), {}
    for step in os.listdir(folder / "store" / "steps"):
        if (commit := store.lookup(step)) is not None:
            seconds[commit.record["name"]] = commit.record["seconds"]
    return seconds


if __name__ == "__main__":
    main()
