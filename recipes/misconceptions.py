"""Which misunderstanding leads a student to a wrong answer? Retrieval and reranking, trained in iterations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from jobs import embed, evaluate_retrieval, finetune_embedder, finetune_reranker, merge, mine, prepare, score
from jobs.job import Job
from jobs.pretrained import pretrained
from orchestrator.step import Output, RecipeError, Row, Source, Step, Summary, step

BASELINES = ("BM25", "zero-shot")

Model = Source | Output
"""A folder that a job can load: a published model, or what `merge` made."""


def misconceptions(
    *,
    data: str,
    base: str = "sentence-transformers/all-MiniLM-L6-v2",
    bootstrap: str = "",
    reranker: str = "none",
    iterations: int = 2,
    mining: Literal["each", "given", "given_scored"] = "each",
    window: tuple[int, int] = (2, 200),
    reranker_window: tuple[int, int] = (2, 100),
    negatives: int = 15,
    depth: int = 25,
    epochs: int = 2,
    learning_rate: float = 1e-3,
    temperature: float = 0.05,
    reranker_epochs: tuple[int, ...] = (3, 1),
    reranker_learning_rate: float = 1e-3,
    start: Literal["base", "incumbent"] = "incumbent",
    distillation: Literal["none", "kl_div", "m3_kd_loss"] = "kl_div",
    ablations: bool = False,
    seed: int = 42,
) -> Summary:
    """Mine hard negatives, finetune the embedder on them, mine again with it; with a reranker that teaches, if wanted.

    data        Eedi's CSVs, FlagEmbedding JSONL or a BEIR folder
    base        the embedder to finetune: a folder or a hub id
    bootstrap   the model that mines first; empty: the base
    reranker    none, or the model to finetune as one (a decoder answers Yes or No, an encoder becomes a
                cross-encoder): it learns from what the new embedder ranks high, and teaches the next one;
                `embedder` is what the first iteration made of the embedder, a good beginning for small encoders
    iterations  how often to go round
    mining      where negatives come from: mined anew in each iteration (each), the data's own, if any (given), or
                these with the teacher's scores that the data brings (given_scored)
    window      candidates by rank that the embedder's negatives are drawn from
    reranker_window  the same for the reranker's
    negatives   hard negatives that are mined per query
    depth       documents of each list that are reranked
    epochs      of each finetune of the embedder; the best by held-out MAP@25 is kept
    learning_rate, temperature  good for small encoders; a large model wants a rate of 1e-4 or less
    reranker_epochs  of the reranker's finetune in each iteration, the last number in all that follow: a fresh head
                needs more; the best by MAP@25 of reranked held-out lists is kept
    reranker_learning_rate  good for small encoders
    start       each finetune goes on from the last model (incumbent), or begins anew (base)
    distillation  how the reranker of one iteration teaches the finetunes of the next
    ablations   also iterate without a teacher, and without mining, in the same table
    seed        of the split, of mining and of training
    """
    prepared = step("prepare", prepare.JOB, data=Source(Path(data), label=data), seed=seed)
    common = {"start": start, "distillation": distillation}
    loop = Loop(
        prepared,
        embedder=pretrained(base),
        reranker=None if reranker == "none" else "embedder" if reranker == "embedder" else pretrained(reranker),
        mining=mining,
        window=window,
        reranker_window=reranker_window,
        negatives=negatives,
        depth=depth,
        seed=seed,
        embedder_training={
            "epochs": epochs,
            "learning_rate": learning_rate,
            "temperature": temperature,
            **common,
        },
        reranker_epochs=reranker_epochs,
        reranker_training={
            "learning_rate": reranker_learning_rate,
            "label_smoothing": 0.2,
            **common,
        },
    )
    variants = [loop]
    if ablations:
        variants += [
            replace(loop, variant="no teacher", reranker=None),
            replace(loop, variant="no mining", reranker=None, mining="given"),
        ]
    summaries = [variant.summary(pretrained(bootstrap or base), iterations) for variant in variants]
    return Summary([*summaries[0].rows, *(row for other in summaries[1:] for row in other.rows[len(BASELINES) :])])


@dataclass(frozen=True)
class Loop:
    """The loop itself, over a step with the folders corpus, train, valid and test."""

    prepared: Step
    embedder: Source
    """What is finetuned."""
    reranker: Source | Literal["embedder"] | None
    """What is finetuned as one; `embedder`: what the first iteration made of it. None: the embedder's half alone."""
    mining: Literal["each", "given", "given_scored"]
    window: tuple[int, int]
    reranker_window: tuple[int, int]
    negatives: int
    depth: int
    seed: int
    embedder_training: Mapping[str, Any]
    reranker_epochs: tuple[int, ...]
    """In each iteration; the last number in all that follow."""
    reranker_training: Mapping[str, Any]
    variant: str = ""
    """Told in the names of its steps and rows."""
    made: dict[str, Step] = field(default_factory=dict)
    """Vectors and evaluations by name: several steps, and variants, look at the same ones."""

    def __post_init__(self) -> None:
        if not self.reranker_epochs:
            raise RecipeError("reranker_epochs: nothing given; expected a number for each iteration, as in 3,1")

    def summary(self, bootstrap: Source, iterations: int) -> Summary:
        """`bootstrap` mines first; it is also what the iterations are compared with."""
        bm25 = self.once("bm25/evaluate", evaluate_retrieval.JOB, **self.asked("test"), system="bm25", tag="bm25")
        zero_shot = self.evaluated("zero_shot", bootstrap, "test")
        rows = [row(label, baseline) for label, baseline in zip(BASELINES, (bm25, zero_shot), strict=True)]
        before = f"{self.variant.replace(' ', '_')}/" if self.variant else ""
        behind = f", {self.variant}" if self.variant else ""

        miner_at = "zero_shot"
        miner: Model = bootstrap
        embedder: Output | None = None
        reranker: Output | None = None
        teacher: Output | None = None
        standing: Output | None = None
        reranker_base: Model | None = None
        for i in range(iterations):
            at = f"{before}iter{i}"
            mined = self.mined(f"{at}/mine", miner_at, miner, self.window, i)
            tuned = step(
                f"{at}/finetune_embedder",
                finetune_embedder.JOB,
                base=self.embedder,
                mined=self.taught(f"{at}/score_mined", mined, teacher, standing),
                corpus=self.prepared["corpus"],
                valid=self.prepared["valid"],
                incumbent=embedder,
                seed=self.seed + i,
                **self.training(self.embedder_training, teacher),
            )
            embedder = tuned["adapter"]
            miner_at, miner = at, self.merged(f"{at}/merge_embedder", self.embedder, embedder)
            evaluation = self.evaluated(at, miner, "test", before=zero_shot)
            rows.append(row(f"iteration {i}{behind}", evaluation, tuned, mined))
            if self.reranker is None:
                continue
            reranker_base = reranker_base or (miner if self.reranker == "embedder" else self.reranker)

            hard = self.mined(f"{at}/mine_hard", miner_at, miner, self.reranker_window, i)
            ordering = step(
                f"{at}/finetune_reranker",
                finetune_reranker.JOB,
                base=reranker_base,
                mined=self.taught(f"{at}/score_hard", hard, teacher, standing),
                corpus=self.prepared["corpus"],
                valid=self.prepared["valid"],
                ranking=self.evaluated(at, miner, "valid")["ranking"],
                incumbent=reranker,
                epochs=self.reranker_epochs[min(i, len(self.reranker_epochs) - 1)],
                seed=self.seed + i,
                depth=self.depth,
                **self.training(self.reranker_training, teacher),
            )
            reranker, standing = ordering["adapter"], ordering["standing"]
            teacher = self.merged(f"{at}/merge_reranker", reranker_base, reranker)
            scored = self.scored(f"{at}/score_test", evaluation["ranking"], teacher, depth=self.depth)
            reranked = step(
                f"{at}/evaluate_reranked",
                evaluate_retrieval.JOB,
                **self.asked("test"),
                scored=scored,
                before=evaluation,
                system="reranked",
                tag=f"{at}_reranked",
            )
            rows.append(row(f"iteration {i}, reranked{behind}", reranked, ordering, hard))
        return Summary(rows)

    def asked(self, split: str) -> dict[str, Any]:
        return {"queries": self.prepared[split], "corpus": self.prepared["corpus"]}

    def training(self, settings: Mapping[str, Any], teacher: Output | None) -> dict[str, Any]:
        """Without a teacher's scores there is nothing to distil."""
        return dict(settings) if teacher or self.mining == "given_scored" else {**settings, "distillation": "none"}

    def once(self, name: str, job: Job, **inputs: Any) -> Step:
        if name not in self.made:
            self.made[name] = step(name, job, **inputs)
        return self.made[name]

    def embedded(self, at: str, model: Model, texts: str) -> Step:
        role = "passage" if texts == "corpus" else "query"
        return self.once(f"{at}/embed_{texts}", embed.JOB, model=model, texts=self.prepared[texts], role=role)

    def evaluated(self, at: str, model: Model, split: str, before: Step | None = None) -> Step:
        return self.once(
            f"{at}/evaluate" if split == "test" else f"{at}/evaluate_{split}",
            evaluate_retrieval.JOB,
            **self.asked(split),
            query_embeddings=self.embedded(at, model, split),
            corpus_embeddings=self.embedded(at, model, "corpus"),
            before=before,
            tag=at,
        )

    def mined(self, name: str, at: str, model: Model, window: tuple[int, int], i: int) -> Step | Output:
        """Negatives for the training queries, from what a model ranks high."""
        if self.mining != "each":
            return self.prepared["train"]
        return step(
            name,
            mine.JOB,
            **self.asked("train"),
            query_embeddings=self.embedded(at, model, "train"),
            corpus_embeddings=self.embedded(at, model, "corpus"),
            window=window,
            negatives=self.negatives,
            seed=self.seed + i,
        )

    def scored(self, name: str, lists: Step | Output, reranker: Model, **more: Any) -> Step:
        return step(name, score.JOB, model=reranker, lists=lists, corpus=self.prepared["corpus"], **more)

    def taught(self, name: str, mined: Step | Output, teacher: Output | None, standing: Output | None) -> Step | Output:
        """With a teacher's scores, where there is a teacher that anybody listens to, and that has something to say."""
        listens = self.embedder_training.get("distillation", "none") != "none" and self.mining != "given_scored"
        return self.scored(name, mined, teacher, standing=standing) if teacher and listens else mined

    def merged(self, name: str, base: Model, adapter: Output) -> Output:
        """A finetune that did not get better than its base keeps the base: such an adapter changes nothing."""
        corpus = self.prepared["corpus"]
        return step(name, merge.JOB, base=base, adapter=adapter, corpus=corpus, allow_unchanged=True)["model"]


def row(label: str, evaluation: Step, tuned: Step | None = None, mined: Step | Output | None = None) -> Row:
    """One line of the final table."""
    columns = {"loss": tuned.metric("loss")} if tuned else {}
    columns |= {"MAP@25": evaluation.metric("map@25"), "R@25": evaluation.metric("r@25")}
    return Row(label, columns, steps=[s for s in (mined, tuned, evaluation) if isinstance(s, Step)])
