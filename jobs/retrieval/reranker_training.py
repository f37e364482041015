"""Training of a reranker on groups of one positive and mined negatives: batches, loss and evaluation.

Legend: Q queries of a batch, G members of a query's group (the positive first, then negatives).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from ratchet.data.rankings import reorder
from ratchet.data.tables import RANKED, Texts, check_queries, read_shards, take_texts
from ratchet.data.triplets import Triplets, pad_rows
from ratchet.errors import InputError
from ratchet.jobs.prompt_settings import list_instructions, resolve_reranker_config
from ratchet.jobs.training.config import find_start
from ratchet.jobs.training.evaluation import Evaluation, draw_rows, evaluate_rows
from ratchet.jobs.training.shared_table import read_shared
from ratchet.jobs.training.task import Batch, FinetuneTask
from ratchet.jobs.training.teacher_gate import find_teacher_temperature
from ratchet.jobs.training.worker import WorkerInfo, gather_objects
from ratchet.models.loading import eval_mode
from ratchet.models.losses.contrastive import scale_for_workers
from ratchet.models.losses.distillation import distillation_loss
from ratchet.models.model_files import find_config_folder
from ratchet.models.pass_size import GROUPS_PER_PASS
from ratchet.models.reranker import reranker
from ratchet.models.reranker.prefix_sharing import PrefixRow, index_pairs, make_pair_row
from ratchet.models.reranker.reranker_config import read_reranker_config
from ratchet.models.search.held_out_loss import compute_list_losses
from ratchet.models.search.ranks import Relevant
from ratchet.models.zero3_sync import Zero3Sync
from ratchet.orchestrator.job_interface import Resources

if TYPE_CHECKING:
    from ratchet.jobs.retrieval.finetune_reranker import Config, Inputs


@dataclass(frozen=True)
class Groups:
    """What `loss` takes: the groups of some queries."""

    rows: list[PrefixRow]
    """The tokenized pairs of query and passage. A row may hold several pairs of a query."""
    sizes: list[int]
    """Number of passages of each query."""
    teacher: list[np.ndarray] | None
    """The teacher's scores of each query's passages, float32."""
    queries: int
    """Number of queries in the batch, over all workers."""


class RerankerTask(FinetuneTask):
    """A reranker of which an adapter or all weights are trained."""

    job = "finetune_reranker"

    def __init__(
        self, worker: WorkerInfo, config: "Config", inputs: "Inputs", resources: Resources
    ) -> None:
        super().__init__(worker, config, inputs, resources)
        corpus = read_shared(worker, inputs.corpus, ["id", "text"])
        self.text_of = Texts(corpus)
        self.valid = pa.table({})
        self.lists: list[dict[str, Any]] = []
        """The ranking of each held-out query."""
        if inputs.valid and inputs.ranking:
            valid = read_shards(inputs.valid)
            ranking = read_shards(inputs.ranking, RANKED.names)
            check_queries(inputs.ranking, ranking, valid, inputs.valid)
            drawn = draw_rows(valid, config.eval_fraction, config.seed)
            self.valid = valid.take(drawn)
            self.lists = ranking.take(drawn).to_pylist()
        self.valid_prompts = list_instructions(config, self.valid)
        self.triplets = Triplets(
            read_shards(inputs.mined),
            corpus,
            seed=config.seed,
            batch_size=config.batch_size,
            num_negatives=config.num_negatives,
            teacher=config.distillation != "none",
        )
        self.teacher_temperature = find_teacher_temperature(config, self.triplets)
        self.prompts = list_instructions(config, self.triplets.queries)
        if not self.triplets.has_negatives:
            raise InputError(
                f"{inputs.mined}: no query has a negative; expected negatives for at least one; run `mine` first"
            )
        self.steps = self.count_steps(self.triplets.smallest_batch, self.triplets.num_batches)
        start, adapter = find_start(config, inputs)
        self.reranker_config = resolve_reranker_config(config, start, adapter)
        decodes = self.reranker_config.kind == "yes_no"
        self.reranker = self.load(
            reranker.load,
            start,
            reranker_config=self.reranker_config,
            seed=config.seed,
            # PEFT copies a head that is trained. This works only if ZeRO-3 has not partitioned its weights.
            zero_stage=None if decodes else 0,
        )
        self.model = self.reranker.model = self.make_trainable(
            self.reranker.model,
            modules_to_save=reranker.find_heads(self.reranker),
            task="CAUSAL_LM" if decodes else "SEQ_CLS",
        )
        self.zero3_sync = Zero3Sync(
            self.reranker.backbone, self.device, needed=config.shard_stage == 3
        )

    def evaluate_start(self) -> Evaluation:
        has_reranker = self.inputs.current_best is not None or reranker.can_score(self.inputs.base)
        if self.lists and not has_reranker:
            ranks = [row["ranks"] for row in self.lists]
            return evaluate_lists(self.config.metric, self.valid, ranks)
        return super().evaluate_start()

    def evaluate_current_best(self) -> Evaluation:
        current_best = self.inputs.current_best
        if self.config.method == "full":
            return self._evaluate_reranked(
                reranker.load(current_best, dtype=self.config.dtype, device=self.device)
            )
        config = read_reranker_config(find_config_folder(self.inputs.base, current_best))
        return self._evaluate_reranked(self.reranker.with_config(config))

    def evaluate(self) -> Evaluation:
        self.finish_preparing()
        with eval_mode(self.model):
            return self._evaluate_reranked(self.reranker)

    def save(self, folder: Path) -> None:
        super().save(folder)
        self.reranker_config.write(folder)

    def batch(self, epoch: int, step: int) -> Batch:
        prepared: Batch = self.take_prepared(epoch, step)
        return prepared

    def prepare(self, epoch: int, step: int) -> Batch:
        """Split this worker's groups into microbatches of about `micro_batch_size`. Groups are independent."""
        data = self.triplets
        worker = self.worker
        drawn = data.batch(epoch, step, worker.rank, worker.world_size)
        # All workers have the same number of microbatches, and none is empty.
        least = drawn.queries // worker.world_size
        most = -(-drawn.queries // worker.world_size)
        count = min(least, -(-most // (self.resources.micro_batch_size or GROUPS_PER_PASS)))
        microbatches = []
        for chosen in np.array_split(np.arange(len(drawn.query_Q)), count):
            queries = take_texts(data.query_text, drawn.query_Q[chosen])
            prompts = [self.prompts[query] for query in drawn.query_Q[chosen]]
            passages = []
            for q in chosen:
                passages.append(take_texts(data.corpus_text, drawn.passage_P[drawn.own_Q[q]]))
            teacher = None
            if drawn.teacher_Q is not None:
                teacher = [drawn.teacher_Q[q] for q in chosen]
            rows = self.reranker.tokenize(queries, passages, prompts)
            microbatches.append(
                Groups(rows, [len(own) for own in passages], teacher, drawn.queries)
            )
        return Batch(
            microbatches, sum(len(row.ids) for groups in microbatches for row in groups.rows)
        )

    def loss(self, microbatch: Groups) -> Tensor:
        config = self.config
        scores = torch.split(self._score(microbatch.rows), microbatch.sizes)
        score_QG = torch.nn.utils.rnn.pad_sequence(list(scores), batch_first=True)
        device = score_QG.device
        sizes_Q1 = torch.tensor(microbatch.sizes, device=device)[:, None]
        member_QG = torch.arange(score_QG.shape[1], device=device).expand(len(scores), -1)
        gap_QG = member_QG >= sizes_Q1
        teacher_QG = None
        if microbatch.teacher is not None:
            teacher_QG = torch.from_numpy(pad_rows(microbatch.teacher, 0.0)).to(device)
        total = distillation_loss(
            config.distillation,
            score_QG,
            member_QG.masked_fill(gap_QG, -1),
            teacher_QG,
            mask_QP=gap_QG,
            label_smoothing=config.label_smoothing,
            teacher_temperature=self.teacher_temperature,
            weight=config.distillation_weight,
        )
        zero = self.zero3_sync.finish(self._run_blank)
        return scale_for_workers(total, microbatch.queries, self.worker.world_size) + zero

    def _run_blank(self) -> Tensor:
        return self.reranker.forward([make_pair_row([], [0, 0], None)])

    def _score(self, rows: Sequence[PrefixRow]) -> Tensor:
        """Return the scores of all pairs, float32 [pairs] with gradient, computed in batches of similar length."""
        groups = self.group_rows([len(row.ids) for row in rows])
        found = []
        for group in groups:
            found.append(self.reranker.forward([rows[i] for i in group], self.multiple))
        scores = torch.cat(found)
        pairs_of = index_pairs(rows)
        order = np.argsort(np.concatenate([pairs_of[i] for group in groups for i in group]))
        return scores[torch.from_numpy(order).to(scores.device)]

    def _evaluate_reranked(self, model: Any) -> Evaluation:
        """Evaluate the held-out lists, if any, reranked by `model`. Each worker scores a part of the lists."""
        if not self.lists:
            return Evaluation({})
        own = self.split_rows(len(self.lists))
        documents = [self.lists[q]["documents"][: self.config.depth] for q in own]
        scores = model.score(
            [self.lists[q]["text"] for q in own],
            [self.text_of.find(names) for names in documents],
            [self.valid_prompts[q] for q in own],
            batch_tokens=self.resources.batch_tokens,
        )
        with torch.no_grad():
            self.zero3_sync.finish(self._run_blank)
        found = []  # ranks of the positives, scores of the documents, places of positives among them
        for q, names, score_D in zip(own, documents, scores, strict=True):
            positives = self.valid["positives"][q].as_py()
            _, ranks = reorder(names, score_D, positives, self.lists[q]["ranks"])
            found.append((ranks, score_D, np.flatnonzero(np.isin(names, positives))))
        everything = [row for part in gather_objects(found) for row in part]
        all_ranks, all_scores, places = zip(*everything, strict=True)
        losses_Q = compute_list_losses(all_scores, places)
        return evaluate_lists(self.config.metric, self.valid, all_ranks, losses_Q)


def evaluate_lists(
    metric: str, valid: pa.Table, ranks: Sequence[Sequence[int]], losses_Q: np.ndarray | None = None
) -> Evaluation:
    """Evaluate rankings of the queries in `valid`, given the ranks of each query's positives. losses_Q: see
    `evaluate_rows`."""
    # The metrics depend only on the number of relevant documents and on their ranks, so any row numbers do.
    relevant = Relevant.from_lists([list(range(len(own))) for own in ranks])
    flat_R = np.array([rank for own in ranks for rank in own], np.int64)
    return evaluate_rows(valid, metric, flat_R, relevant, "map@25", "r@25", losses_Q=losses_Q)
