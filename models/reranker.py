"""(query, passage) pairs to scores of relevance: decoders that answer Yes or No, and encoder cross-encoders.

Legend: B pairs, L tokens (padded), D dimensions, A answers (one or two), V vocabulary.

A decoder's head would give [B, L, V] logits; of these [B, A] are wanted. So only the last position's state is taken,
and only the answers' rows of the head. And a query's tokens are computed once for many of its pairs (models.pair_rows).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor

from models import pairs
from models.batching import MULTIPLE, token_batches
from models.contract import home
from models.devices import place, torch_dtype
from models.errors import ModelError
from models.loading import evaluating, moved, open_model
from models.packed import pack
from models.pair_rows import Row, can_share, places, together, tree, whole
from models.pairs import PairContract, PairTokenizer

CPU_BATCH_TOKENS = 2048
"""On a CPU larger batches leave the caches and gain nothing."""

HEADS = ("classifier", "score", "pre_classifier")
"""What transformers call the layers that a sequence classifier has on top; they are trained whole."""


class Reranker:
    """A model, its tokenizer and its contract."""

    def __init__(self, model: Any, tokenizer: Any, contract: PairContract) -> None:
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token
        self.model = model
        self.tokens = PairTokenizer(tokenizer, contract)
        self.contract = contract
        self.device = next(model.parameters()).device
        self.filler: int = tokenizer.pad_token_id
        self.shares = contract.kind == "yes_no" and can_share(model, contract.max_length)
        """Whether the pairs of a query share rows."""
        self.head = _rows_of_head(model, self.tokens.answers) if contract.kind == "yes_no" else None
        self.fresh: list[str] = []
        """Layers that the folder lacked, filled with random numbers."""

    @property
    def called(self) -> Any:
        """What a forward pass calls: of a decoder all but its head."""
        if self.head is None:
            return self.model
        causal = self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model
        return causal.base_model

    def rows(self, queries: Sequence[str], passages: Sequence[Sequence[str]]) -> list[Row]:
        """The pairs of each query with its passages, in their order; every different text is tokenised once."""
        distinct = list(dict.fromkeys(text for own in passages for text in own))
        ids_of = dict(zip(distinct, self.tokens.texts(distinct, "passage"), strict=True))
        rows: list[Row] = []
        for query, own in zip(self.tokens.texts(queries, "query"), passages, strict=True):
            parts = [self.tokens.parts(query, ids_of[text]) for text in own]
            if self.shares and parts:
                rows += together(parts[0][0], [second for _, second in parts])
            else:
                rows += [whole(first, second, self.tokens.types) for first, second in parts]
        return rows

    def forward(self, rows: Sequence[Row], multiple: int = 1) -> Tensor:
        """Scores [pairs of all rows], float32; gradients flow where the model wants them."""
        length = -(-max(len(row.ids) for row in rows) // multiple) * multiple
        ids_BL = np.full((len(rows), length), self.filler, np.int64)
        types_BL = np.zeros_like(ids_BL)
        for number, row in enumerate(rows):
            ids_BL[number, : len(row.ids)] = row.ids
            if row.types is not None:
                types_BL[number, : len(row.ids)] = row.types
        given = torch.from_numpy(ids_BL).to(self.device)
        if self.contract.kind == "yes_no":
            return self._answers(given, rows)
        options: dict[str, Tensor] = {}
        lengths_B1 = torch.tensor([[len(row.ids)] for row in rows], device=self.device)
        if not bool((lengths_B1 == length).all()):
            options["attention_mask"] = (torch.arange(length, device=self.device) < lengths_B1).long()
        if rows[0].types is not None:
            options["token_type_ids"] = torch.from_numpy(types_BL).to(self.device)
        logits_B1 = self.called(input_ids=given, **options).logits
        return logits_B1[:, 0].float()

    def _answers(self, ids_BL: Tensor, rows: Sequence[Row]) -> Tensor:
        # Padding stands on the right, where a decoder's earlier tokens never look: single pairs need no mask.
        options: dict[str, Tensor] = {}
        if any(len(row.ends) > 1 for row in rows):
            positions_BL, mask_B1LL = tree(rows, ids_BL.shape[1])
            options["position_ids"] = torch.from_numpy(positions_BL).to(self.device)
            seen_B1LL = torch.from_numpy(mask_B1LL).to(self.device)
            by_hand = self.model.config._attn_implementation == "eager"  # which adds the mask to the logits
            options["attention_mask"] = torch.where(seen_B1LL, 0.0, -1e9) if by_hand else seen_B1LL
        hidden_BLD = self.called(input_ids=ids_BL, use_cache=False, **options).last_hidden_state
        row_P = torch.tensor([b for b, row in enumerate(rows) for _ in row.ends], device=hidden_BLD.device)
        last_P = torch.tensor([end - 1 for row in rows for end in row.ends], device=hidden_BLD.device)
        assert self.head is not None
        logits_PA = torch.nn.functional.linear(hidden_BLD[row_P, last_P], *self.head).float()
        return logits_PA[:, 0] if len(self.tokens.answers) == 1 else logits_PA[:, 0] - logits_PA[:, 1]

    @torch.no_grad()  # inference mode would leave weights that ZeRO-3 gathers unfit for training
    def score(
        self,
        queries: Sequence[str],
        passages: Sequence[Sequence[str]],
        *,
        batch_tokens: int = 16_384,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[np.ndarray]:
        """float32 scores of each query's passages, in their order; the higher, the more relevant.

        batch_tokens: tokens with padding per forward pass, of which CPUs take CPU_BATCH_TOKENS at most.
        progress(pairs done, tokens done) is called per batch; tokens that pairs share count once. Raises
        ModelError for a score that is not finite.
        """
        cpu = self.device.type == "cpu"
        multiple, budget = (1, min(batch_tokens, CPU_BATCH_TOKENS)) if cpu else (MULTIPLE, batch_tokens)
        rows = self.rows(queries, passages)
        lengths = np.array([len(row.ids) for row in rows], dtype=np.int64)
        scores, places_of = np.zeros(sum(map(len, passages)), np.float32), places(rows)
        pairs_done = tokens_done = 0
        with evaluating(self.model):
            for batch in token_batches(lengths, budget, multiple) if rows else []:
                own = np.concatenate([places_of[i] for i in batch])
                scores[own] = self.forward([rows[i] for i in batch], multiple).cpu().numpy()
                pairs_done, tokens_done = pairs_done + len(own), tokens_done + int(lengths[batch].sum())
                if progress:
                    progress(pairs_done, tokens_done)
        if not np.isfinite(scores).all():
            row = int(np.flatnonzero(~np.isfinite(scores))[0])
            raise ModelError(f"score of pair {row}: not finite; expected a number; try dtype=float32")
        return np.split(scores, np.cumsum([len(own) for own in passages])[:-1]) if len(passages) else []


def load(
    base: Path,
    adapter: Path | None = None,
    *,
    dtype: str = "auto",
    device: str = "auto",
    contract: PairContract | None = None,
    training: bool = False,
    quantization: str = "none",
    packed: bool = True,
    seed: int = 0,
) -> Reranker:
    """A model folder as a reranker, a LoRA adapter merged into its weights (in float32, before the cast).

    A folder without a classifier's head gets a fresh one, drawn by `seed`, if it is to be trained; without an adapter
    that holds one it cannot score. Other parameters: as `models.encoder.load`. Raises ModelError for an unusable
    folder.
    """
    where = place(device)
    kind = torch_dtype(dtype, where)
    if contract is None:
        contract = pairs.read(home(base, adapter))
    decoder = contract.kind == "yes_no"
    state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    try:
        model, missing = open_model(
            transformers.AutoModelForCausalLM if decoder else transformers.AutoModelForSequenceClassification,
            base,
            dtype=torch.float32 if adapter else kind,
            device=where,
            training=training,
            quantization=quantization,
            may_lack=lambda name: not decoder and (training or adapter is not None) and _of_head(name),
            **({} if decoder else {"num_labels": 1}),
        )
    finally:
        torch.random.set_rng_state(state)
    if adapter is not None and not training:
        from models import lora

        model = lora.merged(model, adapter)
    model = moved(model, where, kind)
    model.train(training)
    if packed and not training:
        pack(model)
    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    reranker = Reranker(model, tokenizer, contract)
    reranker.fresh = sorted({name.rpartition(".")[0] for name in missing})
    if decoder:
        _check_head(reranker)
    return reranker


def can_score(base: Path) -> bool:
    """Whether a model folder is a reranker as it is: a decoder, or an encoder with a head of one output."""
    if pairs.read(base).kind == "yes_no":
        return True
    config = json.loads((base / "config.json").read_text())
    return any("SequenceClassification" in name for name in config.get("architectures") or [])


def heads(reranker: Reranker) -> list[str]:
    """The layers that are trained and saved whole: a classifier's, and those that the folder lacked."""
    model = reranker.model
    return sorted({*(name for name in HEADS if hasattr(model, name)), *reranker.fresh})


def _rows_of_head(model: Any, answers: Sequence[int]) -> tuple[Tensor, Tensor | None]:
    """The answers' rows [A, D] of a decoder's head, which is never trained, and of its bias [A]."""
    head = model.get_output_embeddings()
    if not isinstance(head, torch.nn.Linear):
        raise ModelError(f"model: its head is a {type(head).__name__}; expected a plain linear layer; leave it alone")
    bias = head.bias
    return head.weight.detach()[answers].clone(), None if bias is None else bias.detach()[answers].clone()


def _of_head(name: str) -> bool:
    return name.split(".")[0] in HEADS or "pooler" in name


@torch.inference_mode()
def _check_head(reranker: Reranker) -> None:
    """Raises ModelError for a decoder that does more to its logits than a linear layer (soft caps, scales)."""
    row = whole([], reranker.tokens.answers[:1], None)
    ids_BL = torch.tensor([row.ids], device=reranker.device)
    with evaluating(reranker.model):
        ours = reranker.forward([row])
        logits_V = reranker.model(input_ids=ids_BL, use_cache=False).logits[0, -1].float()
    answers = logits_V[reranker.tokens.answers]
    theirs = answers[0] if len(answers) == 1 else answers[0] - answers[1]
    if not torch.allclose(ours[0], theirs, atol=0.05 * float(logits_V.std()) + 1e-3):
        raise ModelError(
            f"model: its head gives {float(theirs):.4g} where the answers' rows give {float(ours[0]):.4g}; expected a"
            " plain linear head; models that cap or scale their logits are not read yet"
        )
