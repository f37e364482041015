"""The retrieval loop: mine hard negatives, finetune the embedder, finetune a reranker on its rankings, repeat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ratchet.errors import InputError
from ratchet.jobs.retrieval import embed, evaluate_retrieval, finetune_embedder, finetune_reranker, merge, mine
from ratchet.jobs.training.config import Distillation
from ratchet.orchestrator.step import Job, Output, Row, Source, Step, Summary, step
from ratchet.recipes.parts.predictions import (
    Systems,
    TrainingQueries,
    fuse_evaluations,
    fuse_rankings,
    list_systems,
    rank_by_bm25,
    rank_queries,
    score_lists,
    write_files,
)
from ratchet.recipes.parts.rows import compare, make_row
from ratchet.recipes.parts.teachers import Teacher

Model = Source | Output
"""A model folder: a published model, a model of another run, or an output of this run."""

LEARNING_RATES = {"lora": 1e-3, "full": 2e-4}
"""Method -> learning rate for small encoders."""

EPOCHS_OF_NEW_HEAD = 3
"""Training epochs of a reranker that does not start from a finetuned reranker."""

Mining = Literal["each", "given", "given_scored"]
"""Source of the negatives: mined in each iteration, in the data, or in the data with teacher scores."""


@dataclass(frozen=True)
class RetrievalLoop:
    """The steps of the retrieval loop over a prepared data set.

    The table shows metrics on test; without test, on valid; without both, losses. Without valid, every finetuning step
    keeps the model of its last epoch, and no reranker is a teacher. The defaults suit small encoders such as MiniLM. A
    large model needs a learning rate of 1e-4 or less."""

    prepared: Step
    """A `prepare` step, with the outputs corpus and train, and optionally valid and test."""
    embedder: Model
    """The base model of the embedder in all iterations."""
    reranker: Model | Literal["embedder"] | None = None
    """The base model of the reranker in all iterations. `embedder`: the embedder of iteration 0. None: no reranker."""
    mining: Mining = "each"
    distillation: Distillation = "kl_div"
    """Loss on the teacher's scores. `none`: no teacher."""
    teacher: Teacher | None = None
    """The teacher in all iterations. None: the reranker of the previous iteration."""
    guided: bool = False
    """Whether the model that mines is also the guide that masks negatives in training (GISTEmbed)."""
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
    examples: Source | None = None
    """Few-shot examples before the queries, for the model that mines first and for the finetuned embedders."""
    seed: int = 42
    reranker_settings: Mapping[str, Any] = field(default_factory=dict)
    """Further settings of `finetune_reranker`, such as num_negatives."""
    folder: str = ""
    """Prefix of all step names, such as `fold0/`."""
    variant: str = ""
    """Name of an ablation, which is a part of its step names and row labels. Empty: the loop itself."""
    train: Output | Step | None = None
    """Training queries. None: the output `train` of `prepared`."""
    new_queries: Step | None = None
    """Queries for which the last models rank the corpus."""
    bm25: bool = True
    """Whether to rank with BM25 too, and fuse it with the models. The held-out queries choose the weights."""
    knn: bool = True
    """Whether to rank the documents of the nearest training queries too, and fuse them likewise."""
    shared_steps: dict[str, Step] = field(default_factory=dict)
    """Name -> step with embeddings or an evaluation. All variants of a loop share these steps."""

    def build_summary(self, bootstrap: Model, iterations: int, *, ablations: bool = False) -> Summary:
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
        distills = self.reranker and not self.teacher and self.distillation != "none" and self.mining != "given_scored"
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
                self, variant="no teacher", reranker=None, teacher=None, new_queries=None, bm25=False, knn=False
            )
            for variant in (alone, replace(alone, variant="no mining", mining="given")):
                rows += variant._iterate(bootstrap, iterations)[0]
        if not self.new_queries:
            return Summary(rows, best=best)
        ranking, _ = fuse_rankings(systems, self.valid)
        return Summary(rows, files=write_files(ranking, self.prepared["corpus"]), best=best)

    @property
    def splits(self) -> list[str]:
        """The splits to evaluate on: test and valid, if they exist. The table shows the first one."""
        found: list[str] = []
        for name in ("test", "valid"):
            if name in self.prepared.outputs:
                found.append(name)
        return found

    @property
    def valid(self) -> Output | None:
        """The held-out queries."""
        if "valid" in self.splits:
            return self.prepared["valid"]
        return None

    def _iterate(self, bootstrap: Model, iterations: int) -> tuple[list[Row], dict[str, Output], Systems]:
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
        zero_shot = {split: self.evaluate(miner_name, bootstrap, split) for split in self.splits[:1]}
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
                **self.guide(miner_name, miner),
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
                split: self.evaluate(name, miner, split, **compare(split, zero_shot, finetuned))
                for split in self.splits
            }
            judged = evaluations.get("valid")
            rows.append(make_row(f"iteration {i}{suffix}", evaluations, finetuned, mined, miner, judged))
            if self.reranker is None:
                continue
            reranker_base = reranker_base or (miner if self.reranker == "embedder" else self.reranker)
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
            best_reranker, merged = self.take_model(f"{name}/merge_reranker", reranker_base, reranker)
            if not self.teacher and i + 1 < iterations:
                teacher = Teacher(merged, reranker["teacher_gate"])
            shown = dict(list(evaluations.items())[:1])
            for split, lists in evaluations.items():
                scored = score_lists(f"{name}/rerank_{split}", merged, lists["ranking"], corpus, depth=self.depth)
                compared = compare(split, shown, reranker)
                reranked[split] = self.evaluate_order(name, "reranked", split, scored, **compared)
            both = {"embedder": evaluations, "reranker": reranked}
            if valid:
                final = {self.splits[0]: self.blend(name, "", both)}
            else:
                final = reranked
            rows.append(
                make_row(f"iteration {i}, reranked{suffix}", final, reranker, hard, merged, reranked.get("valid"))
            )
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
        ranked = rank_queries("model", self.new_queries, corpus, miner, vectors, merged, self.depth, train=train)
        asked = list_systems("model", ranked, held_out)
        if self.bm25 and valid:
            asked["bm25"] = self.rank_by_words("valid"), rank_by_bm25(self.new_queries, corpus, "queries")
        return rows, models, asked

    def embed(self, name: str, model: Model, texts: str) -> Step:
        values: dict[str, Any] = {"role": "passage" if texts == "corpus" else "query"}
        if texts != "corpus" and (isinstance(model, Source) or model.step.finished):
            values["examples"] = self.examples  # models that this run finetunes have them in their folders
        return self._step_once(f"{name}/embed_{texts}", embed.JOB, model=model, texts=self._texts(texts), **values)

    def evaluate(self, name: str, model: Model, split: str, **inputs: Any) -> Step:
        """Rank the corpus by the embeddings of a model, and evaluate the ranking."""
        inputs["query_embeddings"] = self.embed(name, model, split)
        inputs["corpus_embeddings"] = self.embed(name, model, "corpus")
        return self._evaluate(name, "", split, **inputs)

    def evaluate_order(self, name: str, kind: str, split: str, scored: Step | Output, **inputs: Any) -> Step:
        """Reorder the top documents of rankings by the scores in `scored`, and evaluate the result."""
        return self._evaluate(name, kind, split, scored=scored, system="reranked", **inputs)

    def _evaluate(self, name: str, kind: str, split: str, **inputs: Any) -> Step:
        """Evaluate a ranking. kind: the system, such as `reranked` or `knn`, for the step's name; empty: embedder."""
        words = filter(None, ("evaluate", kind, "" if split == "test" else split))
        inputs |= {**self._queries(split), "tag": f"{name}_{kind}" if kind else name}
        return self._step_once(f"{name}/{'_'.join(words)}", evaluate_retrieval.JOB, **inputs)

    def rank_by_words(self, split: str) -> Step:
        """Rank the corpus by BM25, and evaluate the ranking."""
        return self._evaluate(f"{self.folder}bm25", "", split, system="bm25")

    def blend(self, name: str, end: str, systems: Mapping[str, Mapping[str, Step]]) -> Step:
        """Fuse systems with weights chosen on the held-out queries, and evaluate the fusion on the split in the table.
        systems: name -> split -> evaluation; the fusion is compared with the first. end: suffix of the step names."""
        shown = self.splits[0]
        evaluated = {}
        for one, found in systems.items():
            evaluated[one] = (found["valid"], found[shown])
        blended = fuse_evaluations(f"{name}/blend{end}", self.valid, evaluated)
        before = next(iter(systems.values()))[shown]
        return self.evaluate_order(name, f"blended{end}", shown, blended["ranking"], before=before)

    def rank_by_knn(self, name: str, model: Model, split: str) -> Step:
        """Rank the documents of the nearest training queries, by a model's embeddings, and evaluate the ranking."""
        queries, train = (self.embed(name, model, texts) for texts in (split, "train"))
        inputs = {"query_embeddings": queries, "train": self._texts("train"), "train_embeddings": train}
        return self._evaluate(name, "knn", split, system="knn", **inputs)

    def fuse(self, label: str, name: str, model: Model, systems: Mapping[str, Mapping[str, Step]]) -> list[Row]:
        """Return the row for the fusion of `systems` with BM25 and the nearest training queries, as far as these are
        enabled. Return no row if neither is, or without held-out queries."""
        if self.bm25:
            added = {"bm25": {split: self.rank_by_words(split) for split in self.splits}}
        else:
            added = {}
        if self.knn:
            added |= {"knn": {split: self.rank_by_knn(name, model, split) for split in self.splits}}
        if not (added and self.valid):
            return []
        return [make_row(f"{label}, fused", {self.splits[0]: self.blend(name, "_all", {**systems, **added})})]

    def mine(self, name: str, miner_name: str, miner: Model, window: tuple[int, int], i: int) -> Step | Output:
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

    def guide(self, miner_name: str, miner: Model) -> dict[str, Any]:
        """Return the guide's inputs of `finetune_embedder`: embeddings by the model that mined; none if not guided."""
        if self.guided:
            kinds = {"guide_queries": "train", "guide_corpus": "corpus"}
        else:
            kinds = {}
        found: dict[str, Any] = {}
        for name, texts in kinds.items():
            found[name] = self.embed(miner_name, miner, texts)
        return found

    def score_with_teacher(self, name: str, mined: Step | Output, teacher: Teacher | None) -> Step | Output:
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
        merged = step(name, merge.JOB, base=base, adapter=adapter, corpus=corpus, allow_unchanged=True)
        return adapter, merged["model"]

    def _distillation(self, teacher: Teacher | None) -> Distillation:
        """Return the setting `distillation` of a finetuning step: `none` if there are no teacher scores."""
        if teacher or self.mining == "given_scored":
            return self.distillation
        return "none"

    def _queries(self, split: str) -> dict[str, Any]:
        return {"queries": self._texts(split), "corpus": self.prepared["corpus"]}

    def _texts(self, name: str) -> Step | Output:
        if self.train and name == "train":
            return self.train
        return self.prepared[name]

    def _step_once(self, name: str, job: Job, **values: Any) -> Step:
        if name not in self.shared_steps:
            self.shared_steps[name] = step(name, job, **values)
        return self.shared_steps[name]
