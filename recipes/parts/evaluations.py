"""Rankings of a prepared data set: by embedders, BM25, nearest training queries, and rankings fused of these."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ratchet.jobs.retrieval import evaluate_retrieval
from ratchet.orchestrator.step import Output, Row, Source, Step, step
from ratchet.recipes.parts.models import Model
from ratchet.recipes.parts.predictions import embed_texts, fuse_evaluations
from ratchet.recipes.parts.rows import make_row


@dataclass(frozen=True, kw_only=True)
class Evaluations:
    """The steps that embed a prepared data set, and rank its corpus for its queries."""

    prepared: Step
    """A `prepare` step, with the outputs corpus and train, and optionally valid and test."""
    examples: Source | Output | None = None
    """Few-shot examples before the queries, for the model that mines first and for the finetuned embedders. Queries
    with examples of their own get those."""
    folder: str = ""
    """Prefix of all step names, such as `fold0/`."""
    train: Output | Step | None = None
    """Training queries. None: the output `train` of `prepared`."""
    bm25: bool = True
    """Whether to rank with BM25 too, and fuse it with the models. The held-out queries choose the weights."""
    knn: bool = True
    """Whether to rank the documents of the nearest training queries too, and fuse them likewise."""
    folds: int = 0
    """Number of folds of a cross-validation of the training queries, in place of held-out queries. 0: none."""
    shared_steps: dict[str, Step] = field(default_factory=dict)
    """Name -> step with embeddings or an evaluation. All variants of a loop share these steps."""

    @property
    def splits(self) -> list[str]:
        """The splits to evaluate on: test and valid, if they exist; train with `folds`. The table shows the first."""
        if self.folds:
            return ["train"]
        return [name for name in ("test", "valid") if name in self.prepared.outputs]

    @property
    def valid(self) -> Output | None:
        """The held-out queries."""
        if "valid" in self.splits:
            return self.prepared["valid"]
        return None

    def embed(self, name: str, model: Model | str, texts: str) -> Step:
        role = "passage" if texts == "corpus" else "query"
        given = isinstance(model, Source) or (isinstance(model, Output) and model.step.finished)
        # Models that this run finetunes have them in their folders.
        examples = self.examples if role == "query" and given else None
        given_texts = self._texts(texts)
        return self._step_once(
            f"{name}/embed_{texts}", embed_texts, model, given_texts, role, examples
        )

    def evaluate(self, name: str, model: Model | str, split: str, **inputs: Any) -> Step:
        """Rank the corpus by the embeddings of a model, and evaluate the ranking."""
        inputs["query_embeddings"] = self.embed(name, model, split)
        inputs["corpus_embeddings"] = self.embed(name, model, "corpus")
        return self._evaluate(name, "", split, **inputs)

    def evaluate_order(
        self, name: str, kind: str, split: str, scored: Step | Output, **inputs: Any
    ) -> Step:
        """Reorder the top documents of rankings by the scores in `scored`, and evaluate the result."""
        return self._evaluate(name, kind, split, scored=scored, system="reranked", **inputs)

    def _evaluate(self, name: str, kind: str, split: str, **inputs: Any) -> Step:
        """Evaluate a ranking. kind: the system, such as `reranked` or `knn`, for the step's name; empty: embedder."""
        words = filter(None, ("evaluate", kind, "" if split == "test" else split))
        inputs |= {**self._queries(split), "tag": f"{name}_{kind}" if kind else name}
        return self._step_once(f"{name}/{'_'.join(words)}", step, evaluate_retrieval.JOB, **inputs)

    def rank_by_words(self, split: str) -> Step:
        """Rank the corpus by BM25, and evaluate the ranking."""
        return self._evaluate(f"{self.folder}bm25", "", split, system="bm25")

    def blend(self, name: str, end: str, systems: Mapping[str, Mapping[str, Step]]) -> Step:
        """Fuse systems with weights chosen on the held-out queries, and evaluate the fusion on the split in the table.
        systems: name -> split -> evaluation; the fusion is compared with the first. end: suffix of the step names."""
        shown = self.splits[0]
        chooses = "train" if self.folds else "valid"
        evaluated = {one: (found[chooses], found[shown]) for one, found in systems.items()}
        blended = fuse_evaluations(
            f"{name}/blend{end}", self.prepared[chooses], evaluated, self.folds or 1
        )
        before = next(iter(systems.values()))[shown]
        return self.evaluate_order(name, f"blended{end}", shown, blended["ranking"], before=before)

    def rank_by_knn(self, name: str, model: Model | str, split: str) -> Step:
        """Rank the documents of the nearest training queries, by a model's embeddings, and evaluate the ranking."""
        inputs = {
            "query_embeddings": self.embed(name, model, split),
            "train": self._texts("train"),
            "train_embeddings": self.embed(name, model, "train"),
        }
        return self._evaluate(name, "knn", split, system="knn", **inputs)

    def fuse(
        self,
        label: str,
        name: str,
        model: Model | str,
        systems: Mapping[str, Mapping[str, Step]],
        detail: bool = False,
    ) -> list[Row]:
        """Return the row for the fusion of `systems` with BM25 and the nearest training queries, as far as these are
        enabled. Return no row if neither is, or without held-out queries."""
        every = dict(systems)
        if self.bm25:
            every["bm25"] = {split: self.rank_by_words(split) for split in self.splits}
        if self.knn:
            every["knn"] = {split: self.rank_by_knn(name, model, split) for split in self.splits}
        if len(every) == len(systems) or not (self.valid or self.folds):
            return []
        evaluated = {self.splits[0]: self.blend(name, "_all", every)}
        return [make_row(f"{label}, fused", evaluated, detail=detail)]

    def _queries(self, split: str) -> dict[str, Any]:
        return {"queries": self._texts(split), "corpus": self.prepared["corpus"]}

    def _texts(self, name: str) -> Step | Output:
        if self.train and name == "train":
            return self.train
        return self.prepared[name]

    def _step_once(self, name: str, make: Callable[..., Step], *given: Any, **inputs: Any) -> Step:
        """Return the step of this name; if there is none yet, make it of the further arguments."""
        if name not in self.shared_steps:
            self.shared_steps[name] = make(name, *given, **inputs)
        return self.shared_steps[name]
