"""The retrieval loop: mine hard negatives, finetune the embedder, finetune a reranker on its rankings, repeat."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ratchet.errors import InputError
from ratchet.jobs.model_checks import LARGE_HIDDEN_SIZE, is_large
from ratchet.jobs.retrieval import finetune_embedder, finetune_reranker, merge, mine
from ratchet.jobs.training.config import Distillation
from ratchet.orchestrator.step import Output, Row, Source, Step, Summary, step
from ratchet.recipes.parts.evaluations import Evaluations
from ratchet.recipes.parts.models import Adapted, Model, choose_checkpoint, find_folder
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
"""Method -> learning rate for small encoders. That of large models is a tenth."""
LARGE_BATCH = 512
"""Queries of a batch for more than a million documents: 64 on each of 8 GPUs."""

FEW_BATCH = 128
"""Queries of a batch for few queries, so that the folds have as many training steps as the last training."""
INNER_FOLDS = 3
"""Folds of a cross-validation of few queries: each trains on two thirds, and takes as long as the last training."""
EPOCHS_OF_NEW_HEAD = 3
"""Training epochs of a reranker that does not start from a finetuned reranker."""

Mining = Literal["each", "given", "given_scored"]
"""Source of the negatives: mined in each iteration, in the data, or in the data with teacher scores."""


@dataclass
class LoopState:
    """What the loop has made so far."""

    name: str
    """Prefix of the step names of the iteration that made the miner."""
    miner: Model | str
    """The last embedder, which mines in the next iteration. At the start it may be the URL of an API (str)."""
    teacher: Teacher | None
    adapter: Output | None = None
    """The embedder's adapter (with method=full, its model)."""
    evaluations: dict[str, Step] = field(default_factory=dict)
    """Split -> evaluation of the last embedder."""
    reranker_base: Source | Output | None = None
    reranker: Model | None = None
    reranker_adapter: Output | None = None
    reranked: dict[str, Step] = field(default_factory=dict)
    """Split -> evaluation of the last reranker."""


@dataclass(frozen=True, kw_only=True)
class RetrievalLoop(Evaluations):
    """The steps of the retrieval loop over a prepared data set.

    The table shows metrics on test; without test, on valid; without both, losses. Without valid, every finetuning step
    keeps the model of its last epoch, and no reranker is a teacher unless its gate is open. The defaults suit small
    encoders such as MiniLM; a model with a large hidden size is trained with a tenth of the learning rate."""

    embedder: Source | Output
    """The base model of the embedder in all iterations."""
    reranker: Source | Output | Literal["embedder"] | None = None
    """The base model of the reranker in all iterations. `embedder`: the embedder of iteration 0. None: no reranker."""
    mining: Mining = "each"
    distillation: Distillation = "kl_div"
    """Loss on the teacher's scores. `none`: no teacher."""
    teacher: Teacher | None = None
    """The teacher in all iterations. None: the reranker of the previous iteration."""
    method: Literal["lora", "full"] = "lora"
    """`lora`: train LoRA adapters. `full`: train all weights."""
    keep: Literal["best", "last", "all"] = "best"
    """The models of a finetuning that are kept. `all`: a further step takes one of them."""
    window: tuple[int, int] = (2, 200)
    """`mine.window` for the embedder's negatives."""
    reranker_window: tuple[int, int] = (2, 100)
    """`mine.window` for the reranker's negatives."""
    num_negatives: int = 15
    """Negatives that are mined per query."""
    num_examples: int = 0
    """Maximum number of few-shot examples before a query in the training of embedders."""
    depth: int = 25
    """Number of documents per query that are reranked."""
    seed: int = 42
    many_documents: bool = False
    """Whether there are more than a million documents, for which batches are larger."""
    reranker_settings: Mapping[str, Any] = field(default_factory=dict)
    """Further settings of `finetune_reranker`, such as num_negatives."""
    new_queries: Step | None = None
    """Queries for which the last models rank the corpus."""

    def build_summary(self, bootstrap: Model | str, iterations: int) -> Summary:
        """Build the steps of all iterations. `bootstrap`, the zero-shot baseline, mines in the first one."""
        self._check_teacher()
        last = LoopState(f"{self.folder}zero_shot", bootstrap, self.teacher)
        for split in self._compared_splits:
            last.evaluations[split] = self.evaluate(last.name, bootstrap, split)
        zero_shot = dict(list(last.evaluations.items())[:1])
        rows = self._make_baselines(last, detail=iterations > 0)
        for i in range(iterations):
            rows.append(self._train_embedder(last, i, zero_shot))
            if self.reranker is not None:
                rows.append(self._train_reranker(last, i))
        if iterations and self.splits:
            systems = {"embedder": last.evaluations}
            if last.reranked:
                systems["reranker"] = last.reranked
            rows += self.fuse(f"iteration {iterations - 1}", last.name, last.miner, systems)
        best = {}
        for kind, model in (("embedder", last.miner), ("reranker", last.reranker)):
            if isinstance(model, Adapted | Output):
                best[kind] = _find_output(model)
        files: Mapping[str, Output] = {}
        if self.new_queries:
            ranking, _ = fuse_rankings(self._rank_new_queries(last, iterations), self.valid)
            files = write_files(ranking, self.prepared["corpus"])
        notes = []
        if iterations:
            notes = self._describe_learning_rates()
        return Summary(rows, files=files, best=best, notes=notes)

    @property
    def _compared_splits(self) -> list[str]:
        """The splits to evaluate embedders on: valid only if something else than a training step uses it."""
        if self.bm25 or self.knn or self.reranker or self.new_queries:
            return self.splits
        return self.splits[:1]

    def _check_teacher(self) -> None:
        """Raise InputError for a teacher that is not used."""
        unused = ""
        if self.distillation == "none":
            unused = "distillation=none"
        elif self.mining == "given_scored":
            unused = "mining=given_scored"
        if self.teacher and unused:
            raise InputError(
                f"teacher: {self.teacher.model} given, with {unused}, which does not use it; leave one of them out"
            )

    def _make_baselines(self, start: LoopState, detail: bool) -> list[Row]:
        """Return the rows before training, none without held-out queries. detail: whether the base is the main one."""
        rows = []
        for shown in self.splits[:1]:
            if self.bm25:
                words = {shown: self.rank_by_words(shown)}
                rows.append(make_row("BM25", words, baseline=True, detail=detail))
            rows.append(make_row("zero-shot", start.evaluations, baseline=True))
            if self.knn:
                nearest = {shown: self.rank_by_knn(start.name, start.miner, shown)}
                label = "nearest training queries"
                rows.append(make_row(label, nearest, baseline=True, detail=detail))
            systems = {"embedder": start.evaluations}
            rows += self.fuse("zero-shot", start.name, start.miner, systems, detail)
        return rows

    def _train_embedder(self, last: LoopState, i: int, zero_shot: Mapping[str, Step]) -> Row:
        """Mine with the last embedder, finetune, merge and evaluate."""
        name = f"{self.folder}iter{i}"
        mined = self.mine(f"{name}/mine", last.name, last.miner, self.window, i)
        num_negatives = 4
        if self._distillation(self.teacher) != "none":
            num_negatives = 15
        ranking = None
        if self.valid:
            ranking = self.evaluate(last.name, last.miner, "valid")["ranking"]
        finetuned = step(
            f"{name}/finetune_embedder",
            finetune_embedder.JOB,
            base=self.embedder,
            mined=self.score_with_teacher(f"{name}/rerank_mined", mined, last.teacher),
            ranking=ranking,
            current_best=last.adapter,
            examples=self.examples,
            num_examples=self.num_examples,
            epochs=4,
            num_negatives=num_negatives,
            temperature=0.05,
            folds=self.folds or None,
            **self._training_values(self.embedder, last.teacher, i),
        )
        chosen = choose_checkpoint(f"{name}/choose_embedder", finetuned)
        last.adapter, last.miner = self.take_model(
            f"{name}/merge_embedder", self.embedder, finetuned, chosen
        )
        last.name = name
        last.evaluations = {}
        for split in self._compared_splits:
            before = zero_shot.get(split)
            if self.folds:
                scored = finetuned["ranking"]
                evaluated = self.evaluate_order(name, "folds", split, scored, before=before)
            else:
                evaluated = self.evaluate(name, last.miner, split, before=before)
            last.evaluations[split] = evaluated
        made = _find_output(last.miner)
        return make_row(f"iteration {i}", last.evaluations, finetuned, mined, made, chosen)

    def _train_reranker(self, last: LoopState, i: int) -> Row:
        """Mine with the embedder of this iteration, finetune the reranker, merge and evaluate."""
        name = last.name
        base = last.reranker_base
        if base is None:
            assert not isinstance(last.miner, str)  # this iteration has trained it
            base = find_folder(last.miner)
            if isinstance(self.reranker, Source | Output):
                base = self.reranker
        last.reranker_base = base
        hard = self.mine(f"{name}/mine_hard", name, last.miner, self.reranker_window, i)
        values = self._training_values(base, last.teacher, i) | {"label_smoothing": 0.2}
        finetuned = step(
            f"{name}/finetune_reranker",
            finetune_reranker.JOB,
            base=base,
            mined=self.score_with_teacher(f"{name}/rerank_hard", hard, last.teacher),
            ranking=last.evaluations["valid"]["ranking"] if self.valid else None,
            current_best=last.reranker_adapter,
            epochs=1 if i else EPOCHS_OF_NEW_HEAD,
            depth=self.depth,
            **{**values, **self.reranker_settings},
        )
        chosen = choose_checkpoint(f"{name}/choose_reranker", finetuned)
        last.reranker_adapter, last.reranker = self.take_model(
            f"{name}/merge_reranker", base, finetuned, chosen
        )
        if not self.teacher:
            last.teacher = Teacher(last.reranker, chosen["teacher_gate"])
        shown = dict(list(last.evaluations.items())[:1])
        corpus = self.prepared["corpus"]
        for split, lists in last.evaluations.items():
            scored = score_lists(
                f"{name}/rerank_{split}", last.reranker, lists["ranking"], corpus, depth=self.depth
            )
            before = shown.get(split)
            last.reranked[split] = self.evaluate_order(
                name, "reranked", split, scored, before=before
            )
        final: Mapping[str, Step] = last.reranked
        if self.valid:
            both = {"embedder": last.evaluations, "reranker": last.reranked}
            final = {self.splits[0]: self.blend(name, "", both)}
        made = _find_output(last.reranker)
        return make_row(f"iteration {i}, reranked", final, finetuned, hard, made, chosen)

    def _training_values(
        self, base: Source | Output, teacher: Teacher | None, i: int
    ) -> dict[str, Any]:
        """Return the settings and inputs that both finetuning steps of an iteration have."""
        values: dict[str, Any] = {"learning_rate": self._find_learning_rate(base)}
        if self.many_documents:
            values["batch_size"] = LARGE_BATCH
        if self.folds:
            values["batch_size"] = FEW_BATCH
        return values | {
            "corpus": self.prepared["corpus"],
            "valid": self.valid,
            "start_from": "current_best",
            "distillation": self._distillation(teacher),
            "seed": self.seed + i,
            "method": self.method,
            "keep": self.keep,
        }

    def _find_learning_rate(self, base: object) -> float:
        """Return the default learning rate of a base, also of one that this run makes of another model."""
        while isinstance(base, Output):
            inputs = base.step.inputs
            base = inputs.get("base") or inputs.get("model") or inputs.get("training")
        rate = LEARNING_RATES[self.method]
        if isinstance(base, Source) and is_large(base.path):
            rate /= 10
        return rate

    def _describe_learning_rates(self) -> list[str]:
        """Return a note for each large base."""
        reranker = self.embedder if self.reranker == "embedder" else self.reranker
        notes = []
        for name, base in (("embedder", self.embedder), ("reranker", reranker)):
            rate = self._find_learning_rate(base)
            if rate < LEARNING_RATES[self.method]:
                notes.append(
                    f"{name}: its hidden size is {LARGE_HIDDEN_SIZE} or more, so the default learning_rate is {rate:g},"
                    " a tenth of that of small encoders"
                )
        return notes

    def _rank_new_queries(self, last: LoopState, iterations: int) -> Systems:
        """Rank the corpus for the new queries with the last models and BM25."""
        assert self.new_queries is not None
        corpus = self.prepared["corpus"]
        vectors = self.embed(last.name, last.miner, "corpus")
        held_out: dict[str, Step | None] = {"_reranked": last.reranked.get("valid")}
        if iterations:
            held_out[""] = last.evaluations.get("valid")
        train: TrainingQueries | None = None
        if self.knn and self.valid:
            held_out["_knn"] = self.rank_by_knn(last.name, last.miner, "valid")
            train = self._texts("train"), self.embed(last.name, last.miner, "train")
        ranked = rank_queries(
            "model",
            self.new_queries,
            corpus,
            last.miner,
            vectors,
            last.reranker,
            self.depth,
            train=train,
        )
        systems = list_systems("model", ranked, held_out)
        if self.bm25 and self.valid:
            words = rank_by_bm25(self.new_queries, corpus, "queries")
            systems["bm25"] = self.rank_by_words("valid"), words
        return systems

    def mine(
        self, name: str, miner_name: str, miner: Model | str, window: tuple[int, int], i: int
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

    def take_model(
        self, name: str, base: Source | Output, finetuned: Step, chosen: Step
    ) -> tuple[Output, Output | Adapted]:
        """Return (output of the step `chosen`, model). With method=full both are the model. With LoRA the output is the
        adapter (one that changes nothing, if training did not improve on the base)."""
        method = finetuned.config.method
        if method != self.method:
            raise InputError(
                f"{finetuned.job.name}.method: {method} given; expected that of the recipe, {self.method}, which sets"
                f" the learning rate too; set method={method} for the recipe"
            )
        if self.method == "full":
            return chosen["model"], chosen["model"]
        adapter = chosen["adapter"]
        corpus = self.prepared["corpus"]
        merged = step(
            name, merge.JOB, base=base, adapter=adapter, corpus=corpus, allow_unchanged=True
        )
        return adapter, Adapted(base, adapter, merged["model"])

    def _distillation(self, teacher: Teacher | None) -> Distillation:
        """Return the setting `distillation` of a finetuning step: `none` if there are no teacher scores."""
        if teacher or self.mining == "given_scored":
            return self.distillation
        return "none"


def _find_output(model: Model) -> Output:
    """Return the folder of a model that this run makes."""
    found = find_folder(model)
    assert isinstance(found, Output)
    return found
