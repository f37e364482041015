"""The retrieval loop: mine hard negatives, finetune the embedder, finetune a reranker on its rankings, repeat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ratchet.errors import InputError
from ratchet.jobs.retrieval import finetune_embedder, finetune_reranker, merge, mine
from ratchet.jobs.training.config import Distillation
from ratchet.orchestrator.step import Output, Row, Step, Summary, step
from ratchet.recipes.parts.evaluations import Evaluations, Model
from ratchet.recipes.parts.predictions import (
    Systems,
    TrainingQueries,
    fuse_rankings,
    list_systems,
    rank_by_bm25,
    rank_queries,
    score_lists,
    write_files,
)
from ratchet.recipes.parts.rows import make_row
from ratchet.recipes.parts.teachers import Teacher

LEARNING_RATES = {"lora": 1e-3, "full": 2e-4}
"""Method -> learning rate for small encoders."""

EPOCHS_OF_NEW_HEAD = 3
"""Training epochs of a reranker that does not start from a finetuned reranker."""

Mining = Literal["each", "given", "given_scored"]
"""Source of the negatives: mined in each iteration, in the data, or in the data with teacher scores."""


@dataclass(frozen=True, kw_only=True)
class RetrievalLoop(Evaluations):
    """The steps of the retrieval loop over a prepared data set.

    The table shows metrics on test; without test, on valid; without both, losses. Without valid, every finetuning step
    keeps the model of its last epoch, and no reranker is a teacher. The defaults suit small encoders such as MiniLM. A
    large model needs a learning rate of 1e-4 or less."""

    embedder: Model
    """The base model of the embedder in all iterations."""
    reranker: Model | Literal["embedder"] | None = None
    """The base model of the reranker in all iterations. `embedder`: the embedder of iteration 0. None: no reranker."""
    mining: Mining = "each"
    distillation: Distillation = "kl_div"
    """Loss on the teacher's scores. `none`: no teacher."""
    teacher: Teacher | None = None
    """The teacher in all iterations. None: the reranker of the previous iteration."""
    method: Literal["lora", "full"] = "lora"
    """`lora`: train LoRA adapters. `full`: train all weights."""
    window: tuple[int, int] = (2, 200)
    """`mine.window` for the embedder's negatives."""
    reranker_window: tuple[int, int] = (2, 100)
    """`mine.window` for the reranker's negatives."""
    num_negatives: int = 15
    """Negatives that are mined per query."""
    depth: int = 25
    """Number of documents per query that are reranked."""
    seed: int = 42
    reranker_settings: Mapping[str, Any] = field(default_factory=dict)
    """Further settings of `finetune_reranker`, such as num_negatives."""
    variant: str = ""
    """Name of an ablation, which is a part of its step names and row labels. Empty: the loop itself."""
    new_queries: Step | None = None
    """Queries for which the last models rank the corpus."""

    def build_summary(
        self, bootstrap: Model, iterations: int, *, ablations: bool = False
    ) -> Summary:
        """Build the steps of all iterations; with `ablations` also the loop without a reranker and teacher, and without
        these and mining. `bootstrap` mines in the first iteration, and is the zero-shot baseline."""
        if self.teacher and (self.distillation == "none" or self.mining == "given_scored"):
            if self.distillation == "none":
                unused = "distillation=none"
            else:
                unused = "mining=given_scored"
            raise InputError(
                f"teacher: {self.teacher.model} given, with {unused}, which does not use it; leave one of them out"
            )
        distills = (
            self.reranker
            and not self.teacher
            and self.distillation != "none"
            and self.mining != "given_scored"
        )
        if distills and iterations > 1 and "valid" not in self.splits:
            raise InputError(
                f"validation_fraction: 0 given, with distillation={self.distillation}; expected held-out queries, since"
                " a reranker becomes a teacher only if it improves their lists; hold some out, or set distillation=none"
            )
        rows = []
        if self.splits:
            name = f"{self.folder}zero_shot"
            shown = self.splits[0]
            if self.bm25:
                rows.append(make_row("BM25", {shown: self.rank_by_words(shown)}, baseline=True))
            zero_shot = {}
            for split in self.splits:
                zero_shot[split] = self.evaluate(name, bootstrap, split)
            rows.append(make_row("zero-shot", zero_shot, baseline=True))
            if self.knn:
                nearest = {shown: self.rank_by_knn(name, bootstrap, shown)}
                rows.append(make_row("nearest training queries", nearest, baseline=True))
            rows += self.fuse("zero-shot", name, bootstrap, {"embedder": zero_shot})
        own, best, systems = self._iterate(bootstrap, iterations)
        rows += own
        if ablations:
            alone = replace(
                self,
                variant="no teacher",
                reranker=None,
                teacher=None,
                new_queries=None,
                bm25=False,
                knn=False,
            )
            for variant in (alone, replace(alone, variant="no mining", mining="given")):
                rows += variant._iterate(bootstrap, iterations)[0]
        if not self.new_queries:
            return Summary(rows, best=best)
        ranking, _ = fuse_rankings(systems, self.valid)
        return Summary(rows, files=write_files(ranking, self.prepared["corpus"]), best=best)

    def _iterate(
        self, bootstrap: Model, iterations: int
    ) -> tuple[list[Row], dict[str, Output], Systems]:
        """Return (rows, kind -> last model, systems that ranked the new queries). Kinds: embedder, reranker."""
        prefix = self.folder + (f"{self.variant.replace(' ', '_')}/" if self.variant else "")
        if self.variant:
            suffix = f", {self.variant}"
        else:
            suffix = ""
        rows = []
        miner_name = f"{self.folder}zero_shot"
        corpus = self.prepared["corpus"]
        valid = self.valid
        zero_shot = {
            split: self.evaluate(miner_name, bootstrap, split) for split in self.splits[:1]
        }
        miner: Model = bootstrap
        best: Output | None = None
        reranker_base: Model | None = None
        best_reranker: Output | None = None
        teacher = self.teacher
        merged: Output | None = None
        evaluations = dict[str, Step]()
        reranked = dict[str, Step]()
        for i in range(iterations):
            name = f"{prefix}iter{i}"
            mined = self.mine(f"{name}/mine", miner_name, miner, self.window, i)
            finetuned = step(
                f"{name}/finetune_embedder",
                finetune_embedder.JOB,
                base=self.embedder,
                mined=self.score_with_teacher(f"{name}/rerank_mined", mined, teacher),
                corpus=corpus,
                valid=valid,
                ranking=self.evaluate(miner_name, miner, "valid")["ranking"] if valid else None,
                current_best=best,
                examples=self.examples,
                start_from="current_best",
                distillation=self._distillation(teacher),
                seed=self.seed + i,
                epochs=4,
                num_negatives=15 if self._distillation(self.teacher) != "none" else 4,
                method=self.method,
                learning_rate=LEARNING_RATES[self.method],
                temperature=0.05,
            )
            best, miner = self.take_model(f"{name}/merge_embedder", self.embedder, finetuned)
            miner_name = name
            evaluations = {
                split: self.evaluate(name, miner, split, before=zero_shot.get(split))
                for split in self.splits
            }
            rows.append(make_row(f"iteration {i}{suffix}", evaluations, finetuned, mined, miner))
            if self.reranker is None:
                continue
            reranker_base = reranker_base or (
                miner if self.reranker == "embedder" else self.reranker
            )
            hard = self.mine(f"{name}/mine_hard", miner_name, miner, self.reranker_window, i)
            values: dict[str, Any] = {
                "base": reranker_base,
                "mined": self.score_with_teacher(f"{name}/rerank_hard", hard, teacher),
                "corpus": corpus,
                "distillation": self._distillation(teacher),
                "method": self.method,
                "learning_rate": LEARNING_RATES[self.method],
                "label_smoothing": 0.2,
                "seed": self.seed + i,
                **self.reranker_settings,
            }
            reranker = step(
                f"{name}/finetune_reranker",
                finetune_reranker.JOB,
                valid=valid,
                ranking=evaluations["valid"]["ranking"] if valid else None,
                current_best=best_reranker,
                start_from="current_best",
                epochs=1 if i else EPOCHS_OF_NEW_HEAD,
                depth=self.depth,
                **values,
            )
            best_reranker, merged = self.take_model(
                f"{name}/merge_reranker", reranker_base, reranker
            )
            if not self.teacher and i + 1 < iterations:
                teacher = Teacher(merged, reranker["teacher_gate"])
            shown = dict(list(evaluations.items())[:1])
            for split, lists in evaluations.items():
                scored = score_lists(
                    f"{name}/rerank_{split}", merged, lists["ranking"], corpus, depth=self.depth
                )
                before = shown.get(split)
                reranked[split] = self.evaluate_order(
                    name, "reranked", split, scored, before=before
                )
            both = {"embedder": evaluations, "reranker": reranked}
            if valid:
                final = {self.splits[0]: self.blend(name, "", both)}
            else:
                final = reranked
            rows.append(make_row(f"iteration {i}, reranked{suffix}", final, reranker, hard, merged))
        if evaluations:
            systems = {"embedder": evaluations, **({"reranker": reranked} if reranked else {})}
            rows += self.fuse(f"iteration {iterations - 1}{suffix}", miner_name, miner, systems)
        models = {}
        for n, m in (("embedder", miner), ("reranker", merged)):
            if isinstance(m, Output):
                models[n] = m
        if not self.new_queries:
            return rows, models, {}
        vectors = self.embed(miner_name, miner, "corpus")
        held_out = {"": evaluations.get("valid"), "_reranked": reranked.get("valid")}
        train: TrainingQueries | None = None
        if self.knn and valid:
            held_out["_knn"] = self.rank_by_knn(miner_name, miner, "valid")
            train = self._texts("train"), self.embed(miner_name, miner, "train")
        ranked = rank_queries(
            "model", self.new_queries, corpus, miner, vectors, merged, self.depth, train=train
        )
        asked = list_systems("model", ranked, held_out)
        if self.bm25 and valid:
            asked["bm25"] = (
                self.rank_by_words("valid"),
                rank_by_bm25(self.new_queries, corpus, "queries"),
            )
        return rows, models, asked

    def mine(
        self, name: str, miner_name: str, miner: Model, window: tuple[int, int], i: int
    ) -> Step | Output:
        """Return the training queries with negatives: mined by `miner` in `window`, or given in the data."""
        if self.mining != "each":
            return self._texts("train")
        return step(
            name,
            mine.JOB,
            **self._queries("train"),
            query_embeddings=self.embed(miner_name, miner, "train"),
            corpus_embeddings=self.embed(miner_name, miner, "corpus"),
            window=window,
            candidates="auto",
            num_negatives=self.num_negatives,
            seed=self.seed + i,
        )

    def score_with_teacher(
        self, name: str, mined: Step | Output, teacher: Teacher | None
    ) -> Step | Output:
        """Add the teacher's scores to the mined lists, if there is a teacher and its scores are used."""
        if not teacher or self.distillation == "none" or self.mining == "given_scored":
            return mined
        return teacher.score(name, mined, self.prepared["corpus"])

    def take_model(self, name: str, base: Model, finetuned: Step) -> tuple[Output, Output]:
        """Return (output of a finetuning step, whole model). With method=full both are the model. With LoRA they are
        the adapter and the merged model (an adapter that changes nothing, if training did not improve on the base)."""
        method = finetuned.config.method
        if method != self.method:
            raise InputError(
                f"{finetuned.job.name}.method: {method} given; expected that of the recipe, {self.method}, which sets"
                f" the learning rate too; set method={method} for the recipe"
            )
        if self.method == "full":
            return finetuned["model"], finetuned["model"]
        adapter = finetuned["adapter"]
        corpus = self.prepared["corpus"]
        merged = step(
            name, merge.JOB, base=base, adapter=adapter, corpus=corpus, allow_unchanged=True
        )
        return adapter, merged["model"]

    def _distillation(self, teacher: Teacher | None) -> Distillation:
        """Return the setting `distillation` of a finetuning step: `none` if there are no teacher scores."""
        if teacher or self.mining == "given_scored":
            return self.distillation
        return "none"
