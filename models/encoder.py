"""Texts to vectors, with any Hugging Face encoder or decoder.

Legend: B rows, L tokens (padded), D dimensions, N texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor

from models import contract as contracts
from models.batching import MULTIPLE, pad, token_batches
from models.contract import Contract, Role
from models.errors import ModelError
from models.packed import pack
from models.weights import check_folder

OWN_POSITIONS = ("roberta", "xlm-roberta", "camembert", "mpnet", "distilbert", "modernbert", "t5", "bloom", "mpt")
"""Model types that count positions from the padding tokens themselves, or take no `position_ids`."""

CPU_BATCH_TOKENS = 2048
"""On a CPU larger batches leave the caches and gain nothing (benchmarks/embedding.py)."""

WINDOW = 2048
"""Texts, neighbours by their number of characters, that are tokenised together while the ones before are embedded."""


class Encoder:
    """A model, its tokenizer and its contract."""

    def __init__(self, model: Any, tokenizer: Any, contract: Contract) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.contract = contract
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token
        self.device = next(model.parameters()).device
        self.dtype: torch.dtype = model.dtype
        self.dim: int = model.config.hidden_size

    def tokenize(self, texts: Sequence[str], role: Role) -> list[list[int]]:
        """Token ids of each text as the contract has it, special tokens included, cut to its length; never empty."""
        limit = self.contract.max_length - int(self.contract.add_eos)
        rendered = self.contract.render(texts, role)
        if not rendered:
            return []
        rows: list[list[int]] = self.tokenizer(
            rendered, truncation=True, max_length=limit, add_special_tokens=True, return_attention_mask=False
        )["input_ids"]
        end = self.tokenizer.eos_token_id
        if self.contract.add_eos and end is not None:
            rows = [row if row and row[-1] == end else [*row, end] for row in rows]
        # A decoder's tokenizer gives nothing for an empty text; its vector is then that of one end (or padding) token.
        alone = end if end is not None else self.tokenizer.pad_token_id
        return [row or [alone] for row in rows]

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
        return torch.nn.functional.normalize(pooled_BD, dim=-1) if self.contract.normalize else pooled_BD

    @torch.inference_mode()
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


@contextmanager
def quiet() -> Iterator[None]:
    """Without transformers' progress bars and its table of weights that it did not need."""
    logging = transformers.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Without dropout, whatever mode the model is in."""
    before = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(before)


def load(
    base: Path,
    adapter: Path | None = None,
    *,
    dtype: str = "auto",
    device: str = "auto",
    contract: Contract | None = None,
    training: bool = False,
) -> Encoder:
    """A model folder as an encoder, a LoRA adapter merged into its weights (in float32, before the cast).

    dtype: `float32`, `bfloat16`, or `auto` (bfloat16 on GPUs and on CPUs that multiply it natively). device: `cpu`,
    `cuda`, or `auto`. contract: instead of the folder's (the adapter's, where it has one). training: no dropout, and on
    CPUs the attention whose backward is fast there; the adapter is not merged. Raises ModelError for an unusable
    folder.
    """
    check_folder(base)
    place = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)
    kind = torch_dtype(dtype, place)
    if contract is None:
        contract = contracts.read(adapter if adapter is not None and (adapter / contracts.FILE).exists() else base)
    options: dict[str, Any] = {}
    if training:
        options = {"attn_implementation": "eager" if place.type == "cpu" else "sdpa"}
    config = transformers.AutoConfig.from_pretrained(base)
    if training:
        for name in (
            "hidden_dropout_prob",
            "attention_probs_dropout_prob",
            "attention_dropout",
            "embd_pdrop",
            "resid_pdrop",
        ):
            if hasattr(config, name):
                setattr(config, name, 0.0)
    # BERT's pooler is a layer on top that embeddings don't use.
    if config.model_type in ("bert", "roberta", "xlm-roberta"):
        options["add_pooling_layer"] = False
    with quiet():
        model, found = transformers.AutoModel.from_pretrained(
            base, config=config, dtype=torch.float32 if adapter else kind, output_loading_info=True, **options
        )
    # transformers fills what is missing with random numbers. Poolers are computed, but never used here.
    if missing := sorted(name for name in found["missing_keys"] if "pooler" not in name):
        raise ModelError(
            f"model {base}: {missing[0]} and {len(missing) - 1} more weights are missing; expected all that"
            " config.json asks for; fetch or save the model again"
        )
    if adapter is not None and not training:
        from models import lora

        model = lora.merged(model, adapter)
    model = model.to(device=place, dtype=kind)
    model.train(training)
    if not training:
        pack(model)
    sides = {"padding_side": contract.padding_side, "truncation_side": "right"}
    tokenizer = transformers.AutoTokenizer.from_pretrained(base, **sides)
    return Encoder(model, tokenizer, contract)


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


def torch_dtype(name: str, device: torch.device) -> torch.dtype:
    """`auto` is bfloat16 where the device multiplies it natively."""
    if name == "auto":
        return torch.bfloat16 if device.type != "cpu" or _cpu_has_bfloat16() else torch.float32
    if name not in ("float32", "bfloat16"):
        raise ModelError(f"dtype: '{name}' given; expected auto, float32 or bfloat16")
    return torch.float32 if name == "float32" else torch.bfloat16


def _cpu_has_bfloat16() -> bool:
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags
