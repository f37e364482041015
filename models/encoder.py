"""Texts to vectors, with any Hugging Face encoder or decoder.

Legend: B rows, L tokens (padded), D dimensions, N texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor

from models import contract as contracts
from models import projection
from models.batching import MULTIPLE, pad, token_batches
from models.contract import Contract, Example, Role
from models.devices import place, torch_dtype
from models.errors import ModelError
from models.loading import evaluating, moved, open_model
from models.packed import pack
from models.prompts import TextTokenizer

OWN_POSITIONS = ("roberta", "xlm-roberta", "camembert", "mpnet", "distilbert", "modernbert", "t5", "bloom", "mpt")
"""Model types that count positions from the padding tokens themselves, or take no `position_ids`."""

CPU_BATCH_TOKENS = 2048
"""On a CPU larger batches leave the caches and gain nothing (benchmarks/embedding.py)."""

WINDOW = 2048
"""Texts, neighbours by their number of characters, that are tokenised together while the ones before are embedded."""


class Encoder:
    """A model, its tokenizer and its contract."""

    def __init__(
        self, model: Any, tokenizer: Any, contract: Contract, projection: torch.nn.Linear | None = None
    ) -> None:
        self.model = model
        self.projection = projection
        self.tokenizer = tokenizer
        self.contract = contract
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token
        self.tokens = TextTokenizer(tokenizer, contract)
        self.device = next(model.parameters()).device
        self.dtype: torch.dtype = model.dtype

    @property
    def dim(self) -> int:
        """Of the vectors."""
        return self.projection.out_features if self.projection is not None else self.model.config.hidden_size

    def tokenize(
        self, texts: Sequence[str], role: Role, examples: Sequence[Sequence[Example]] | None = None
    ) -> list[list[int]]:
        """See `models.prompts.TextTokenizer`."""
        return self.tokens(texts, role, examples)

    def embed(self, input_ids_BL: Tensor, attention_mask_BL: Tensor) -> Tensor:
        """Pooled (and normalised) vectors [B, D], float32; gradients flow where the model wants them. Padding may
        stand on either side."""
        options: dict[str, Tensor] = {}
        # Without padding there is nothing to mask, and attention without a mask is faster.
        if not bool(attention_mask_BL.all()):
            options["attention_mask"] = attention_mask_BL
            if not bool(attention_mask_BL[:, 0].all()) and self.model.config.model_type not in OWN_POSITIONS:
                # Padded on the left: a text's positions start with the text.
                options["position_ids"] = (attention_mask_BL.cumsum(dim=1) - 1).clamp(min=0)
        hidden_BLD = self.model(input_ids=input_ids_BL, **options).last_hidden_state
        pooled_BD = pool(hidden_BLD, attention_mask_BL, self.contract.pooling)
        if self.projection is not None:
            pooled_BD = self.projection(pooled_BD.to(self.projection.weight.dtype)).float()
        return torch.nn.functional.normalize(pooled_BD, dim=-1) if self.contract.normalize else pooled_BD

    @torch.no_grad()  # inference mode would leave weights that ZeRO-3 gathers unfit for training
    def encode(
        self,
        texts: Sequence[str],
        role: Role,
        *,
        batch_tokens: int = 16_384,
        progress: Callable[[int, int], None] | None = None,
    ) -> np.ndarray:
        """[N, D] float32 vectors, in the order of `texts`; the same texts give the same bytes on the same machine.

        batch_tokens: tokens with padding per forward pass, of which CPUs take CPU_BATCH_TOKENS at most.
        progress(texts done, tokens done) is called per batch. Raises ModelError for a vector that is not finite.
        """
        # Exact lengths save CPUs work; GPUs have kernels for multiples.
        multiple = 1 if self.device.type == "cpu" else MULTIPLE
        if self.device.type == "cpu":
            batch_tokens = min(batch_tokens, CPU_BATCH_TOKENS)
        out_ND = np.empty((len(texts), self.dim), dtype=np.float32)
        texts_done = tokens_done = 0
        with evaluating(self.model):
            for places, rows in self._windows(texts, role):
                lengths = np.array([len(row) for row in rows])
                for batch in token_batches(lengths, batch_tokens, multiple):
                    side, filler = self.contract.padding_side, self.tokenizer.pad_token_id
                    ids_BL, mask_BL = pad([rows[i] for i in batch], filler, side, multiple)
                    vectors_BD = self.embed(ids_BL.to(self.device), mask_BL.to(self.device))
                    out_ND[places[batch]] = vectors_BD.cpu().numpy()
                    texts_done, tokens_done = texts_done + len(batch), tokens_done + int(lengths[batch].sum())
                    if progress:
                        progress(texts_done, tokens_done)
        finite_N = np.isfinite(out_ND).all(axis=1)
        if not finite_N.all():
            row = int(np.flatnonzero(~finite_N)[0])
            raise ModelError(f"embedding of text {row}: not finite; expected numbers; try dtype=float32")
        return out_ND

    def _windows(self, texts: Sequence[str], role: Role) -> Iterator[tuple[np.ndarray, list[list[int]]]]:
        """(places in `texts`, their token ids) by window, longest texts first. A thread is one window ahead: the
        tokenizer works outside Python's lock."""
        order = np.argsort([-len(text) for text in texts], kind="stable")
        windows = [order[start : start + WINDOW] for start in range(0, len(order), WINDOW)]
        with ThreadPoolExecutor(1) as ahead:
            waiting = [ahead.submit(self.tokenize, [texts[i] for i in places], role) for places in windows[:1]]
            for number, places in enumerate(windows):
                rows = waiting.pop().result()
                for following in windows[number + 1 : number + 2]:
                    waiting.append(ahead.submit(self.tokenize, [texts[i] for i in following], role))
                yield places, rows


def load(
    base: Path,
    adapter: Path | None = None,
    *,
    dtype: str = "auto",
    device: str = "auto",
    contract: Contract | None = None,
    training: bool = False,
    quantization: str = "none",
    packed: bool = True,
    home: Path | None = None,
) -> Encoder:
    """A model folder as an encoder, a LoRA adapter merged into its weights (in float32, before the cast).

    dtype: `float32`, `bfloat16`, or `auto` (bfloat16 on GPUs and on CPUs that multiply it natively). device: `cpu`,
    `cuda`, or `auto`. contract: instead of the folder's (the adapter's, where it has one). training: no dropout, and on
    CPUs the attention whose backward is fast there; the adapter is not merged. quantization: as `open_model` has it.
    packed: on CPUs, hold the linear layers as `models.packed` does. home: where the contract's projection is, if not
    where the contract would be looked for. Raises ModelError for an unusable folder.
    """
    where = place(device)
    kind = torch_dtype(dtype, where)
    home = home or contracts.home(base, adapter)
    if contract is None:
        contract = contracts.read(home)
    model, _ = open_model(
        transformers.AutoModel,
        base,
        dtype=torch.float32 if adapter else kind,
        device=where,
        training=training,
        quantization=quantization,
        # Poolers are computed, but never used here.
        may_lack=lambda name: "pooler" in name,
    )
    if adapter is not None and not training:
        from models import lora

        model = lora.merged(model, adapter)
    model = moved(model, where, kind)
    model.train(training)
    if packed and not training:
        pack(model)
    sides = {"padding_side": contract.padding_side, "truncation_side": "right"}
    tokenizer = transformers.AutoTokenizer.from_pretrained(base, **sides)
    layer = None
    if contract.projection:
        found = projection.find(contract.projection, home, base)
        layer = projection.load(found, model.config.hidden_size).to(where, kind)
    return Encoder(model, tokenizer, contract, layer)


def pool(hidden_BLD: Tensor, attention_mask_BL: Tensor, pooling: str) -> Tensor:
    """[B, D] float32: the first token's state, the last one's, or the mean over the text's tokens (summed in float32,
    so that long texts lose nothing). Padding may stand on either side."""
    if pooling == "mean":
        mask_BL1 = attention_mask_BL.unsqueeze(-1).to(hidden_BLD.dtype)
        return (hidden_BLD * mask_BL1).sum(dim=1, dtype=torch.float32) / attention_mask_BL.sum(dim=1, keepdim=True)
    if pooling == "cls":
        place_B = attention_mask_BL.argmax(dim=1)
    else:
        place_B = attention_mask_BL.shape[1] - 1 - attention_mask_BL.flip(1).argmax(dim=1)
    return hidden_BLD[torch.arange(len(place_B), device=hidden_BLD.device), place_B].float()
