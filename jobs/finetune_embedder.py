"""finetune_embedder: a LoRA adapter for an embedder, by contrast with mined negatives; the best epoch is kept.

Legend: Q queries of a step, P its passages (each text once), D dimensions.

All workers know a step's whole batch. Its queries and its passages are dealt out by length, each worker embeds its
share, passages are gathered with their gradient: the loss is the same for any number of workers.
"""

from __future__ import annotations

import json
import re
import shutil
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from jobs.job import BadInput, Context, Job, Resources, Result
from jobs.training import Options, Place, Schedule, gathered, train

if TYPE_CHECKING:
    from torch import Tensor

CPU_TOKENS = 2048
"""Padded tokens of a forward pass on CPUs: what is larger leaves the caches."""


@dataclass(frozen=True)
class Config:
    epochs: int = 4
    """Passes over the queries. The best by `metric` is kept."""
    learning_rate: float = 2e-4
    """At its highest, after the warm-up."""
    temperature: float = 0.02
    """Similarities are divided by it (tau)."""
    batch: int = 64
    """Queries per optimizer step, over all workers; an epoch's steps are nearly equal and hold at most so many."""
    negatives: int = 4
    """Mined negatives per query and step, drawn anew each epoch."""
    rank: int = 32
    """Of the LoRA matrices."""
    alpha: float = 64.0
    """LoRA's update is scaled by alpha / rank."""
    dropout: float = 0.0
    """Of LoRA's inputs. On CPUs it costs a third of the speed."""
    targets: str = "all-linear"
    """Layers that get LoRA: `all-linear`, or names separated by commas."""
    warmup_ratio: float = 0.1
    """Share of all steps over which the rate rises."""
    schedule: Schedule = "cosine"
    """How the rate falls after the warm-up."""
    weight_decay: float = 0.01
    """AdamW's."""
    gradient_clipping: float = 1.0
    """Largest norm of the gradient; 0: not clipped."""
    label_smoothing: float = 0.0
    """Share of the target that goes to all passages evenly."""
    in_batch_negatives: bool = True
    """Whether the passages of all other queries of the step, on all workers, are negatives too."""
    false_negative_mask: bool = True
    """Leave out passages that are known positives of the query, or its own text."""
    max_length: int | None = None
    """Tokens; None: the contract's. Kept in the adapter's contract."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of weights and arithmetic; auto is bfloat16 where the machine multiplies it natively. Master weights: float32."""
    start: Literal["base", "incumbent"] = "base"
    """What training goes on from. `incumbent` without one is the base."""
    metric: str = "map@25"
    """On `valid`, exact over the whole corpus: map@K, r@K, ndcg@K, p@K, hit@K, mrr or map."""
    allow_regression: bool = False
    """Keep the best epoch even if it is no better than the incumbent."""
    save_steps: int | None = None
    """Steps between checkpoints within an epoch; None: about every five minutes."""
    zero_stage: int = 1
    """What workers share of the optimizer: 0 nothing, 1 its state, 2 gradients too."""
    seed: int = 42
    """Of the adapter, the order, the drawn positives and negatives."""


@dataclass(frozen=True)
class Inputs:
    base: Path
    """A Hugging Face model folder."""
    mined: Path
    """Queries with positives and negatives, as `mine` writes them."""
    corpus: Path
    """The texts behind their ids."""
    valid: Path
    """Held-out queries with positives."""
    incumbent: Path | None = None
    """The adapter to beat; None: the base as it is."""


def check(config: Config, inputs: Inputs) -> None:
    rules: list[tuple[str, bool, str]] = [
        ("epochs", config.epochs >= 1, "1 or more"),
        ("learning_rate", config.learning_rate > 0, "more than 0; 1e-5 to 1e-3 is usual"),
        ("temperature", config.temperature > 0, "more than 0; 0.01 to 0.1 is usual"),
        ("batch", config.batch >= 2, "2 or more; a query learns from the others' passages too"),
        ("negatives", config.negatives >= 0, "0 or more"),
        ("negatives", config.negatives > 0 or config.in_batch_negatives, "1 or more where in_batch_negatives is off"),
        ("rank", config.rank >= 1, "1 or more"),
        ("alpha", config.alpha > 0, "more than 0; twice the rank is usual"),
        ("dropout", 0 <= config.dropout < 1, "0 up to below 1"),
        ("warmup_ratio", 0 <= config.warmup_ratio < 1, "0 up to below 1"),
        ("schedule", config.schedule in ("cosine", "linear", "constant"), "cosine, linear or constant"),
        ("weight_decay", config.weight_decay >= 0, "0 or more"),
        ("gradient_clipping", config.gradient_clipping >= 0, "0 (off) or more"),
        ("label_smoothing", 0 <= config.label_smoothing < 1, "0 up to below 1"),
        ("max_length", config.max_length is None or config.max_length >= 4, "4 or more tokens"),
        ("dtype", config.dtype in ("auto", "float32", "bfloat16"), "auto, float32 or bfloat16"),
        ("start", config.start in ("base", "incumbent"), "base or incumbent"),
        ("save_steps", config.save_steps is None or config.save_steps >= 1, "1 or more, or none"),
        (
            "metric",
            bool(re.fullmatch(r"(map|r|ndcg|p|hit)@[1-9]\d*|mrr|map", config.metric)),
            "map@25, r@10, mrr or the like",
        ),
        (
            "zero_stage",
            config.zero_stage in (0, 1, 2),
            "0, 1 or 2; stage 3 cuts the frozen base's weights up as well, and the adapter is written from whole ones: "
            "use 2, and more memory or a smaller base",
        ),
    ]
    for name, holds, expected in rules:
        if not holds:
            raise BadInput(f"finetune_embedder.{name}: {getattr(config, name)} given; expected {expected}")
    from models.weights import check_folder

    if inputs.base is not None:
        check_folder(inputs.base)


@dataclass(frozen=True)
class Share:
    """What one worker computes in one step; token ids, and who stands where."""

    query_ids: list[list[int]]
    passage_ids: list[list[int]]
    offsets: list[int]
    """Where each worker's passages begin among all."""
    positive_Q: Tensor
    mask_QP: Tensor | None
    queries: int
    """Of all workers."""


class Trainee:
    """An embedder with LoRA; see jobs.training.Trainee."""

    def __init__(self, place: Place, config: Config, inputs: Inputs, resources: Resources) -> None:
        from data.tables import read_shards
        from data.triplets import Triplets
        from models import contract, encoder, lora
        from models.fused_lora import fuse

        self.place, self.config, self.inputs, self.resources = place, config, inputs, resources
        self.corpus = read_shards(inputs.corpus, ["id", "text"])
        self.valid = read_shards(inputs.valid, ["id", "text", "positives"])
        self.triplets = Triplets(read_shards(inputs.mined, ["id", "text", "positives", "negatives"]), self.corpus)
        self.steps = self.triplets.steps(config.batch)
        smallest = len(self.triplets) // self.steps
        if smallest < place.workers:
            raise BadInput(
                f"finetune_embedder.workers: {place.workers} given, for steps of {smallest} queries; expected at "
                "most one worker per query; lower workers, or raise batch"
            )
        self.device = "cpu" if place.device == "cpu" else "cuda"
        from_incumbent = inputs.incumbent if config.start == "incumbent" else None
        own = from_incumbent if from_incumbent and (from_incumbent / contract.FILE).exists() else inputs.base
        agreed = contract.read(own).shortened(config.max_length)
        self.encoder = encoder.load(inputs.base, dtype=config.dtype, device=self.device, contract=agreed, training=True)
        if from_incumbent:
            self.model = lora.load(self.encoder.model, from_incumbent, trainable=True)
        else:
            names = config.targets if config.targets == "all-linear" else [n.strip() for n in config.targets.split(",")]
            self.model = lora.attach(
                self.encoder.model,
                rank=config.rank,
                alpha=config.alpha,
                dropout=config.dropout,
                targets=names,
                seed=config.seed,
            )
        self.model.to(self.encoder.model.dtype)
        fuse(self.model)
        self.encoder.model = self.model
        self.ahead: dict[tuple[int, int], Future[Share]] = {}
        self.thread = ThreadPoolExecutor(1)

    def start(self) -> dict[str, float]:
        from models import encoder

        incumbent = self.inputs.incumbent
        as_it_is = encoder.load(
            self.inputs.base,
            incumbent,
            dtype=self.config.dtype,
            device=self.device,
            contract=self.encoder.contract if incumbent is None else None,
        )
        return self._metrics(as_it_is)

    def evaluate(self) -> dict[str, float]:
        self.model.eval()
        try:
            return self._metrics(self.encoder)
        finally:
            self.model.train()

    def save(self, folder: Path) -> None:
        from models import lora

        lora.save(self.model, folder)
        # PEFT writes where the base lay on this machine, and sets in the order of the day: other bytes each time.
        path = folder / "adapter_config.json"
        settings = json.loads(path.read_text()) | {"base_model_name_or_path": None}
        settings = {name: sorted(value) if isinstance(value, list) else value for name, value in settings.items()}
        path.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")
        self.encoder.contract.write(folder)

    def loss(self, epoch: int, step: int) -> tuple[Tensor, int]:
        from models.losses import gather_with_gradient, info_nce, worker_share

        share = self._prepared(epoch, step)
        query_QD = self._embed(share.query_ids)
        passage_PD = gather_with_gradient(self._embed(share.passage_ids), offsets=share.offsets)
        total = info_nce(
            query_QD,
            passage_PD,
            share.positive_Q.to(self.device),
            temperature=self.config.temperature,
            mask_QP=None if share.mask_QP is None else share.mask_QP.to(self.device),
            label_smoothing=self.config.label_smoothing,
            reduction="sum",
        )
        tokens = sum(map(len, share.query_ids)) + sum(map(len, share.passage_ids))
        return worker_share(total, share.queries, self.place.workers), tokens

    def _prepared(self, epoch: int, step: int) -> Share:
        """The step's share; the next step's is made meanwhile."""
        share = self.ahead.pop((epoch, step), None)
        now = share.result() if share is not None else self._prepare(epoch, step)
        if step + 1 < self.steps:
            self.ahead[epoch, step + 1] = self.thread.submit(self._prepare, epoch, step + 1)
        return now

    def _prepare(self, epoch: int, step: int) -> Share:
        import numpy as np
        import torch

        from models.losses import false_negative_mask

        config, data, place = self.config, self.triplets, self.place
        batch = data.step(config.seed, epoch, step, config.batch, config.negatives, place.rank, place.workers)
        positive_Q = torch.from_numpy(batch.positive_Q)
        mask_QP = None
        if config.false_negative_mask:
            known = [data.text_of_row[data.positives(int(query))] for query in batch.query_Q]
            mask_QP = false_negative_mask(
                torch.from_numpy(data.text_of_row[batch.passage_P]),
                positive_Q,
                torch.from_numpy(np.cumsum([0, *map(len, known)])),
                torch.from_numpy(np.concatenate(known)),
                query_text_Q=torch.from_numpy(data.text_of_query[batch.query_Q]),
            )
        if not config.in_batch_negatives:
            others_QP = torch.ones((len(batch.query_Q), len(batch.passage_P)), dtype=torch.bool)
            for i, own in enumerate(batch.own_Q):
                others_QP[i, torch.from_numpy(own)] = False
            mask_QP = others_QP if mask_QP is None else mask_QP | others_QP
        queries = data.query_text.take(batch.query_Q).to_pylist()
        mine = batch.passage_P[batch.offsets[place.rank] : batch.offsets[place.rank + 1]]
        passages = data.corpus_text.take(mine).to_pylist()
        tokenize = self.encoder.tokenize
        return Share(
            tokenize(queries, "query"), tokenize(passages, "passage"), batch.offsets, positive_Q, mask_QP, batch.queries
        )

    def _embed(self, ids: list[list[int]]) -> Tensor:
        """float32 [rows, D] with gradient, in batches of like length."""
        import numpy as np
        import torch

        from models.batching import pad
        from models.length_groups import length_groups

        on_cpu = self.device == "cpu"
        multiple, tokens = (4, CPU_TOKENS) if on_cpu else (8, self.resources.batch_tokens)
        parts, order = [], []
        for batch in length_groups([len(row) for row in ids], tokens, multiple):
            side, filler = self.encoder.contract.padding_side, self.encoder.tokenizer.pad_token_id
            ids_BL, mask_BL = pad([ids[i] for i in batch], filler, side, multiple)
            parts.append(self.encoder.embed(ids_BL.to(self.device), mask_BL.to(self.device)).float())
            order.append(batch)
        back = np.argsort(np.concatenate(order))
        return torch.cat(parts)[torch.from_numpy(back).to(self.device)]

    def _metrics(self, model: Any) -> dict[str, float]:
        """Exact metrics on `valid`: each worker embeds and counts a part of the corpus; ranks add."""
        import numpy as np

        from data.triplets import rows_of
        from models.ranks import RankCounter, Relevant, rank_metrics, relevant_scores

        place = self.place
        asked = np.array_split(np.arange(len(self.valid)), place.workers)[place.rank]
        held = np.array_split(np.arange(len(self.corpus)), place.workers)[place.rank]
        budget = self.resources.batch_tokens
        texts = self.valid["text"].take(asked).to_pylist()
        query_QD = np.concatenate(gathered(model.encode(texts, "query", batch_tokens=budget)))
        first = int(held[0]) if len(held) else 0
        block_ND = model.encode(self.corpus["text"].take(held).to_pylist(), "passage", batch_tokens=budget)
        rows, ends = rows_of(self.valid, "positives", self.corpus)
        relevant = Relevant(ends, rows)
        scores_R = np.fmax.reduce(gathered(relevant_scores(query_QD, relevant, [(first, block_ND)])))
        counter = RankCounter(relevant, scores_R, query_QD=query_QD)
        counter.add(first, block_ND)
        ranks_R = 1 + np.sum(gathered(counter.before_R), axis=0)
        wanted = re.search(r"@(\d+)", self.config.metric)
        values = rank_metrics(ranks_R, relevant, sorted({25, int(wanted[1]) if wanted else 25})).values
        return {name: round(values[name], 6) for name in dict.fromkeys((self.config.metric, "map@25", "r@25"))}


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    options = Options(
        epochs=config.epochs,
        learning_rate=config.learning_rate,
        schedule=config.schedule,
        warmup_ratio=config.warmup_ratio,
        weight_decay=config.weight_decay,
        gradient_clipping=config.gradient_clipping,
        zero_stage=config.zero_stage,
        seed=config.seed,
        metric=config.metric,
        save_steps=config.save_steps,
    )
    adapter = context.out / "adapter"
    arguments = {"config": config, "inputs": inputs, "resources": context.resources}
    history = train(context, options, Trainee, arguments, adapter)
    assert history.best is not None
    before, after = history.start[config.metric], history.epochs[history.best][config.metric]
    improved = after > before
    kept = f"epoch {history.best + 1}"
    if not improved and not config.allow_regression:
        kept = "incumbent" if inputs.incumbent else "base"
        _keep_incumbent(config, inputs, adapter)
    rows: list[dict[str, Any]] = [{"epoch": "start", "loss": None, **history.start}]
    rows += [{"epoch": str(number), **entry} for number, entry in enumerate(history.epochs, 1)]
    chosen = kept.removeprefix("epoch ") if kept.startswith("epoch ") else "start"
    table = [
        {"epoch": row["epoch"], "loss": row["loss"] and _rounded(row["loss"])}
        | {f"valid {name}": row[name] for name in history.start}
        | {"best": row["epoch"] == chosen}
        for row in rows
    ]
    steps = [float(number) for number in range(1, len(history.loss) + 1)]
    curves = {"loss": history.loss, "learning rate": history.learning_rate, "gradient norm": history.gradient_norm}
    return Result(
        {
            "loss": _rounded(history.epochs[-1]["loss"]),
            f"valid {config.metric}": max(before, after) if not config.allow_regression else after,
            f"valid {config.metric} at the start": before,
            f"valid {config.metric} of the best epoch": after,
            "best epoch": history.best + 1,
            "kept": kept,
            "improved": improved,
        },
        {"epochs": table},
        {
            f"{name} against step": {"x": steps, "y": [_rounded(value) for value in values]}
            for name, values in curves.items()
        },
    )


def _keep_incumbent(config: Config, inputs: Inputs, adapter: Path) -> None:
    """Puts the incumbent's files there; for a bare base an adapter that changes nothing: B is 0."""
    if inputs.incumbent is not None:
        shutil.rmtree(adapter)
        shutil.copytree(inputs.incumbent, adapter)
        return
    from safetensors.torch import load_file, save_file

    weights = load_file(adapter / "adapter_model.safetensors")
    changed = {name: value * 0 if "lora_B" in name else value for name, value in weights.items()}
    save_file(changed, adapter / "adapter_model.safetensors", metadata={"format": "pt"})


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")


JOB = Job("finetune_embedder", version=1, config=Config, inputs=Inputs, run=run, check=check)
