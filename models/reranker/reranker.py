"""Relevance scores of (query, passage) pairs: decoders that answer Yes or No, and cross-encoders.

Legend: B pairs, L tokens (padded), D dimensions, A answers (one or two), V vocabulary.

A decoder's head would return [B, L, V] logits, of which [B, A] are needed. Therefore only the last position's state is
multiplied, and only by the answers' rows of the head. Pairs of a query share the query's tokens
(`ratchet.models.reranker.prefix_sharing`).
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from accelerate.utils import align_module_device
from torch import Tensor

from ratchet.errors import ModelError
from ratchet.models.batching import batch_by_tokens, check_finite, pad
from ratchet.models.engine import gather_weights, is_partitioned
from ratchet.models.loading import (
    HEADS,
    eval_mode,
    make_attention_options,
    open_model,
    save_weights,
)
from ratchet.models.model_files import find_config_folder
from ratchet.models.model_kind import describe_kind, read_config
from ratchet.models.pass_size import size_passes
from ratchet.models.reranker.prefix_sharing import (
    PrefixRow,
    can_share_prefix,
    index_pairs,
    make_pair_row,
    make_shared_rows,
    make_tree_attention,
)
from ratchet.models.reranker.reranker_config import (
    PairTokenizer,
    RerankerConfig,
    read_reranker_config,
)


class Reranker:
    """A reranker: model, tokenizer and reranker config."""

    def __init__(self, model: Any, tokenizer: Any, reranker_config: RerankerConfig) -> None:
        self.model = model
        self.tokens = PairTokenizer(tokenizer, reranker_config)
        self.reranker_config = reranker_config
        self.device = next(model.parameters()).device
        self.filler: int = tokenizer.pad_token_id
        if reranker_config.kind == "cross_encoder":
            own = model.config.get_text_config()
            if own.pad_token_id not in range(own.vocab_size):
                # Decoders with a classification head are scored at the last token that is not padding.
                own.pad_token_id = tokenizer.pad_token_id
            self.filler = own.pad_token_id
        self.shares_prefixes = reranker_config.kind == "yes_no" and can_share_prefix(
            model, reranker_config.max_length
        )
        """Whether pairs of a query share a row."""
        self.head: tuple[Tensor, Tensor | None] | None = None
        if reranker_config.kind == "yes_no":
            self.head = _rows_of_head(model, self.tokens.answers)
        self.new_layers: list[str] = []
        """Layers that the model folder lacks; they are initialised at random."""

    def with_config(self, reranker_config: RerankerConfig) -> "Reranker":
        """Return a reranker of the same model with another reranker config."""
        return Reranker(self.model, self.tokens.tokenizer, reranker_config)

    def save(self, base: Path, folder: Path) -> None:
        """Write a model folder, with the tokenizer of its base."""
        save_weights(self.model, base, folder)
        self.reranker_config.write(folder)

    @property
    def backbone(self) -> Any:
        """The module that a forward pass calls: the model, or a decoder without its head."""
        if self.head is None:
            return self.model
        if hasattr(self.model, "get_base_model"):
            causal = self.model.get_base_model()
        else:
            causal = self.model
        return causal.base_model

    def tokenize(
        self,
        queries: Sequence[str],
        passages: Sequence[Sequence[str]],
        prompts: Sequence[str] | None = None,
    ) -> list[PrefixRow]:
        """Return the rows of all pairs, by query and passage. prompts: see `PairTokenizer.tokenize_pairs`."""
        rows = []
        for parts in self.tokens.tokenize_pairs(queries, passages, prompts):
            if self.shares_prefixes and parts:
                rows += make_shared_rows(parts[0][0], [second for _, second in parts])
            else:
                rows += [make_pair_row(first, second, self.tokens.types) for first, second in parts]
        return rows

    def forward(self, rows: Sequence[PrefixRow], multiple: int = 1) -> Tensor:
        """Return scores [pairs of all rows], float32, with gradients for weights that require them."""
        ids_BL, mask_BL = pad([row.ids for row in rows], self.filler, multiple=multiple)
        given = ids_BL.to(self.device)
        if self.reranker_config.kind == "yes_no":
            return self._score_answers(given, rows)
        options = {}
        if not bool(mask_BL.all()):
            options["attention_mask"] = mask_BL.to(self.device)
        if rows[0].token_types is not None:
            types_BL, _ = pad([row.token_types or [] for row in rows], 0, multiple=multiple)
            options["token_type_ids"] = types_BL.to(self.device)
        return self.backbone(input_ids=given, **options).logits[:, 0].float()

    def _score_answers(self, ids_BL: Tensor, rows: Sequence[PrefixRow]) -> Tensor:
        # Padding is on the right, which a causal model does not attend to: single pairs need no mask.
        options = {}
        if any(len(row.ends) > 1 for row in rows):
            options = make_attention_options(
                self.model, *make_tree_attention(rows, ids_BL.shape[1]), self.device
            )
        hidden_BLD = self.backbone(input_ids=ids_BL, use_cache=False, **options).last_hidden_state
        row_P = torch.tensor(
            [b for b, row in enumerate(rows) for _ in row.ends], device=hidden_BLD.device
        )
        last_P = torch.tensor(
            [end - 1 for row in rows for end in row.ends], device=hidden_BLD.device
        )
        assert self.head is not None
        # The last layer and the head may be on two GPUs.
        last_PD = hidden_BLD[row_P, last_P].to(self.head[0])
        logits_PA = torch.nn.functional.linear(last_PD, *self.head)
        if len(self.tokens.answers) == 1:
            return logits_PA[:, 0]
        return logits_PA[:, 0] - logits_PA[:, 1]

    @torch.no_grad()  # inference mode would make weights that ZeRO-3 gathers unusable for training
    def score(
        self,
        queries: Sequence[str],
        passages: Sequence[Sequence[str]],
        prompts: Sequence[str] | None = None,
        *,
        batch_tokens: int = 16_384,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[np.ndarray]:
        """Return the scores of each query's passages, float32, in their order. Higher is more relevant.

        prompts: see `PairTokenizer.tokenize_pairs`. batch_tokens: padded tokens per forward pass, at most
        CPU_TOKENS on CPUs. progress(pairs done, tokens done) is called after each batch; shared tokens count
        once. Raises ModelError for a score that is not finite.
        """
        multiple, budget = size_passes(self.device.type, batch_tokens)
        rows = self.tokenize(queries, passages, prompts)
        lengths = np.array([len(row.ids) for row in rows], dtype=np.int64)
        scores = np.zeros(sum(map(len, passages)), np.float32)
        places_of = index_pairs(rows)
        pairs_done = tokens_done = 0
        with eval_mode(self.model):
            if rows:
                for batch in batch_by_tokens(lengths, budget, multiple):
                    own = np.concatenate([places_of[i] for i in batch])
                    scores[own] = self.forward([rows[i] for i in batch], multiple).cpu().numpy()
                    pairs_done = pairs_done + len(own)
                    tokens_done = tokens_done + int(lengths[batch].sum())
                    if progress:
                        progress(pairs_done, tokens_done)
        check_finite("score of pair", scores)
        if len(passages):
            return np.split(scores, np.cumsum([len(own) for own in passages])[:-1])
        return []


def load(
    base: Path,
    adapter: Path | None = None,
    *,
    reranker_config: RerankerConfig | None = None,
    training: bool = False,
    seed: int = 0,
    **options: Any,
) -> Reranker:
    """Load a model folder as a reranker. A LoRA adapter is merged in float32, before the cast.

    A folder without a classification head gets a random one, drawn from `seed`, if training; else the adapter must
    hold it. options: `dtype`, `device` and `quantization`, see `ratchet.models.embedder.encoder.load`.
    Raises ModelError for an unusable folder.
    """
    reranker_config = reranker_config or read_reranker_config(find_config_folder(base, adapter))
    decoder = reranker_config.kind == "yes_no"
    kind: Any = transformers.AutoModelForCausalLM
    settings = None
    if not decoder:
        kind = transformers.AutoModelForSequenceClassification
        settings = {"num_labels": 1}

    def may_lack(name: str) -> bool:
        in_head = name.split(".")[0] in HEADS or "pooler" in name
        return in_head and not decoder and (training or adapter is not None)

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model, missing = open_model(
            kind, base, adapter, training=training, may_lack=may_lack, settings=settings, **options
        )
    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    reranker = Reranker(model, tokenizer, reranker_config)
    reranker.new_layers = sorted({name.rpartition(".")[0] for name in missing})
    # Partitioned models run once the engine has started.
    if decoder and not any(map(is_partitioned, model.parameters())):
        _check_head(reranker)
    return reranker


def can_score(base: Path) -> bool:
    """Whether a model folder can score without an adapter: a decoder, or an encoder with a classification head."""
    return (
        read_reranker_config(base).kind == "yes_no"
        or describe_kind(read_config(base)) == "a reranker"
    )


def find_heads(reranker: Reranker) -> list[str]:
    """Return the layers that are trained and saved in full: the head's, and others that the folder lacks."""
    heads = [name for name in HEADS if hasattr(reranker.model, name)]
    return sorted(
        {*heads, *(name for name in reranker.new_layers if name.partition(".")[0] not in heads)}
    )


def _rows_of_head(model: Any, answers: Sequence[int]) -> tuple[Tensor, Tensor | None]:
    """Return the answers' rows [A, D] of a decoder's head, which is never trained, and of its bias [A], in float32:
    logits of about 20 that are rounded to bfloat16 differ by 0.125 or not at all."""
    head = model.get_output_embeddings()
    if not isinstance(head, torch.nn.Linear):
        raise ModelError(
            f"model: its head is a {type(head).__name__}; expected nn.Linear; use another model"
        )
    head.requires_grad_(False)  # else a tied embedding would be trained, but not these rows
    with gather_weights(list(head.parameters())), align_module_device(head):
        bias = None if head.bias is None else head.bias.detach()[answers].float().clone()
        return head.weight.detach()[answers].float().clone(), bias


@torch.inference_mode()
def _check_head(reranker: Reranker) -> None:
    """Raise ModelError for a decoder that caps or scales its logits after the linear head."""
    row = make_pair_row([], reranker.tokens.answers[:1], None)
    ids_BL = torch.tensor([row.ids], device=reranker.device)
    with eval_mode(reranker.model):
        ours = reranker.forward([row])
        logits_V = reranker.model(input_ids=ids_BL, use_cache=False).logits[0, -1]
    rounding = torch.finfo(logits_V.dtype).eps
    logits_V = logits_V.float().to(ours.device)
    answers = logits_V[reranker.tokens.answers]
    theirs = answers[0] if len(answers) == 1 else answers[0] - answers[1]
    tolerance = 0.05 * float(logits_V.std()) + 1e-3 + rounding * float(answers.abs().max())
    if not torch.allclose(ours[0], theirs, atol=tolerance):
        raise ModelError(
            f"model: its head gives {float(theirs):.4g} where the answers' rows give {float(ours[0]):.4g}; expected a"
            " plain linear head; models that cap or scale their logits are not supported"
        )
