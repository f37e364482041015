"""The retrieval loop: mine hard negatives, finetune the embedder, finetune a reranker on its rankings, repeat."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ratchet.errors import ModelError
from ratchet.jobs.pretrained import pretrained
from ratchet.jobs.retrieval import embed, evaluate_retrieval, finetune_embedder, finetune_reranker, merge, mine, rerank
from ratchet.orchestrator.step import Job, Output, Row, Source, Step, Summary, step

Model = Source | Output
"""A model folder: a published model, or an output of `merge`."""

Mining = Literal["each", "given", "given_scored"]
"""The source of negatives: mined in each iteration, given by the data, or given with a teacher's scores."""

Distillation = Literal["none", "kl_div", "m3_kd_loss"]


@dataclass(frozen=True)
class RetrievalLoop:
    """The steps of the loop over a prepared data set (a step with the folders corpus, train, valid and test).

    The defaults suit small encoders such as MiniLM. A large model needs a learning rate of 1e-4 or less.
    """

    prepared: Step
    embedder: Source
    """The base model of all finetunes of the embedder."""
    reranker: Source | Literal["embedder"] | None = None
    """The base model of the reranker. `embedder`: the embedder of the first iteration. None: no reranker."""
    mining: Mining = "each"
    distillation: Distillation = "kl_div"
    """The use of the reranker of one iteration as a teacher in the next."""
    window: tuple[int, int] = (2, 200)
    """Ranks from which the embedder's negatives are drawn."""
    reranker_window: tuple[int, int] = (2, 100)
    """Ranks from which the reranker's negatives are drawn."""
    num_negatives: int = 15
    """Negatives that are mined per query."""
    depth: int = 25
    """Documents of each ranking that are reranked."""
    examples: Source | None = None
    """Few-shot examples in front of the queries of the model that mines first and of the finetuned ones."""
    seed: int = 42
    reranker_settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the reranker's finetunes besides learning_rate and label_smoothing."""
    variant: str = ""
    """Part of the names of steps and rows."""
    shared_steps: dict[str, Step] = field(default_factory=dict)
    """Name -> step with vectors or an evaluation, which several steps and variants use."""

    def build_summary(self, bootstrap: Source, iterations: int, *, ablations: bool = False) -> Summary:
        """Build the steps of all iterations, and with `ablations` those without a teacher and without mining.

        `bootstrap` mines first. It is also the zero-shot baseline.
        """
        bm25 = self._step_once(
            "bm25/evaluate", evaluate_retrieval.JOB, **self._queries("test"), system="bm25", tag="bm25"
        )
        zero_shot = self.evaluate("zero_shot", bootstrap, "test")
        variants = [self]
        if ablations:
            variants += [
                replace(self, variant="no teacher", reranker=None),
                replace(self, variant="no mining", reranker=None, mining="given"),
            ]
        rows = [make_row("BM25", bm25), make_row("zero-shot", zero_shot)]
        return Summary([*rows, *(row for variant in variants for row in variant._iterate(bootstrap, iterations))])

    def _iterate(self, bootstrap: Source, iterations: int) -> list[Row]:
        zero_shot = self.evaluate("zero_shot", bootstrap, "test")
        prefix = f"{self.variant.replace(' ', '_')}/" if self.variant else ""
        suffix = f", {self.variant}" if self.variant else ""
        rows = []
        miner_name = "zero_shot"
        miner: Model = bootstrap
        adapter: Output | None = None
        reranker_base: Model | None = None
        reranker: Step | None = None
        teacher: Output | None = None
        for i in range(iterations):
            name = f"{prefix}iter{i}"
            mined = self.mine(f"{name}/mine", miner_name, miner, self.window, i)
            finetuned = step(
                f"{name}/finetune_embedder",
                finetune_embedder.JOB,
                base=self.embedder,
                mined=self.score_with_teacher(f"{name}/rerank_mined", mined, teacher, reranker),
                corpus=self.prepared["corpus"],
                valid=self.prepared["valid"],
                current_best=adapter,
                examples=self.examples,
                start_from="current_best",
                distillation=self._distillation(teacher),
                seed=self.seed + i,
                epochs=2,
                learning_rate=1e-3,
                temperature=0.05,
            )
            adapter = finetuned["adapter"]
            miner_name, miner = name, self.merge(f"{name}/merge_embedder", self.embedder, adapter)
            evaluation = self.evaluate(name, miner, "test", before=zero_shot)
            held_out = self.evaluate(name, miner, "valid", selection=finetuned["selection.json"])
            rows.append(make_row(f"iteration {i}{suffix}", evaluation, finetuned, mined, held_out))
            if self.reranker is None:
                continue
            reranker_base = reranker_base or (miner if self.reranker == "embedder" else self.reranker)

            hard = self.mine(f"{name}/mine_hard", miner_name, miner, self.reranker_window, i)
            reranker = step(
                f"{name}/finetune_reranker",
                finetune_reranker.JOB,
                base=reranker_base,
                mined=self.score_with_teacher(f"{name}/rerank_hard", hard, teacher, reranker),
                corpus=self.prepared["corpus"],
                valid=self.prepared["valid"],
                ranking=held_out["ranking"],
                current_best=reranker and reranker["adapter"],
                start_from="current_best",
                distillation=self._distillation(teacher),
                epochs=1 if i else 3,  # a new head needs more
                learning_rate=1e-3,
                label_smoothing=0.2,
                depth=self.depth,
                seed=self.seed + i,
                **self.reranker_settings,
            )
            teacher = self.merge(f"{name}/merge_reranker", reranker_base, reranker["adapter"])
            reranked = self.evaluate_reranked(name, "test", evaluation, teacher, before=evaluation)
            selection = reranker["selection.json"]
            held_out = self.evaluate_reranked(name, "valid", held_out, teacher, selection=selection)
            rows.append(make_row(f"iteration {i}, reranked{suffix}", reranked, reranker, hard, held_out))
        return rows

    def embed(self, name: str, model: Model, texts: str) -> Step:
        values: dict[str, Any] = {"role": "passage" if texts == "corpus" else "query"}
        if isinstance(model, Source) and texts != "corpus":
            values["examples"] = self.examples  # finetuned models bring theirs along
        return self._step_once(f"{name}/embed_{texts}", embed.JOB, model=model, texts=self.prepared[texts], **values)

    def evaluate(self, name: str, model: Model, split: str, **inputs: Any) -> Step:
        return self._step_once(
            f"{name}/evaluate" if split == "test" else f"{name}/evaluate_{split}",
            evaluate_retrieval.JOB,
            **self._queries(split),
            query_embeddings=self.embed(name, model, split),
            corpus_embeddings=self.embed(name, model, "corpus"),
            tag=name,
            **inputs,
        )

    def evaluate_reranked(self, name: str, split: str, evaluation: Step, reranker: Model, **inputs: Any) -> Step:
        """Rerank the first documents of an evaluation's rankings, and evaluate the result."""
        return step(
            f"{name}/evaluate_reranked" if split == "test" else f"{name}/evaluate_reranked_{split}",
            evaluate_retrieval.JOB,
            **self._queries(split),
            scored=self.rerank(f"{name}/rerank_{split}", evaluation["ranking"], reranker, depth=self.depth),
            system="reranked",
            tag=f"{name}_reranked",
            **inputs,
        )

    def mine(self, name: str, miner_name: str, miner: Model, window: tuple[int, int], i: int) -> Step | Output:
        """Return the training queries with negatives: mined from the ranking of `miner`, or those of the data."""
        if self.mining != "each":
            return self.prepared["train"]
        return step(
            name,
            mine.JOB,
            **self._queries("train"),
            query_embeddings=self.embed(miner_name, miner, "train"),
            corpus_embeddings=self.embed(miner_name, miner, "corpus"),
            window=window,
            num_negatives=self.num_negatives,
            seed=self.seed + i,
        )

    def rerank(self, name: str, lists: Step | Output, reranker: Model, **values: Any) -> Step:
        return step(name, rerank.JOB, model=reranker, lists=lists, corpus=self.prepared["corpus"], **values)

    def score_with_teacher(
        self, name: str, mined: Step | Output, teacher: Output | None, reranker: Step | None
    ) -> Step | Output:
        """Add the teacher's scores to mined negatives, if there is a teacher and its scores are used. `reranker` is the
        finetune that the teacher comes from."""
        if not teacher or not reranker or self.distillation == "none" or self.mining == "given_scored":
            return mined
        return self.rerank(name, mined, teacher, teacher_gate=reranker["teacher_gate"])

    def merge(self, name: str, base: Model, adapter: Output) -> Output:
        """Merge an adapter into its base. A finetune without improvement keeps the base (an empty adapter)."""
        corpus = self.prepared["corpus"]
        return step(name, merge.JOB, base=base, adapter=adapter, corpus=corpus, allow_unchanged=True)["model"]

    def _distillation(self, teacher: Output | None) -> Distillation:
        """Return the distillation of a finetune: none without a teacher's scores."""
        return self.distillation if teacher or self.mining == "given_scored" else "none"

    def _queries(self, split: str) -> dict[str, Any]:
        return {"queries": self.prepared[split], "corpus": self.prepared["corpus"]}

    def _step_once(self, name: str, job: Job, **values: Any) -> Step:
        if name not in self.shared_steps:
            self.shared_steps[name] = step(name, job, **values)
        return self.shared_steps[name]


def make_row(
    label: str,
    evaluation: Step,
    finetuned: Step | None = None,
    mined: Step | Output | None = None,
    held_out: Step | None = None,
) -> Row:
    """Return a row of the final table. held_out: the evaluation of the merged model that tells what merging cost."""
    columns = {"loss": finetuned.metric("loss")} if finetuned else {}
    columns |= {"MAP@25": evaluation.metric("map@25"), "R@25": evaluation.metric("r@25")}
    columns |= {"merging cost": held_out.metric("merging_cost")} if held_out else {}
    return Row(label, columns, steps=[s for s in (mined, finetuned, evaluation) if isinstance(s, Step)])


def choose_reranker(name: str) -> Source | Literal["embedder"] | None:
    """Convert the recipe parameter `reranker`: none, embedder, or a model."""
    if name in ("none", "embedder"):
        return None if name == "none" else "embedder"
    try:
        return pretrained(name)
    except ModelError as error:
        near = difflib.get_close_matches(name, ("none", "embedder"), n=1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise ModelError(f"reranker: {error}; none and embedder are possible too{hint}") from None
