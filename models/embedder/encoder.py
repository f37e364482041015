"""Text embeddings with any Hugging Face encoder or decoder.

Legend: B rows, L tokens (padded), D dimensions, N texts.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor

from ratchet.errors import ModelError
from ratchet.models.batching import batch_by_tokens, check_finite, pad
from ratchet.models.devices import resolve_device, resolve_dtype
from ratchet.models.embedder import projection
from ratchet.models.embedder.encoding_config import EncodingConfig, Role, read_encoding_config
from ratchet.models.embedder.sentence_transformers_layout import write_layout
from ratchet.models.embedder.tokenization import Examples, TextTokenizer
from ratchet.models.loading import eval_mode, open_model, save_weights
from ratchet.models.model_files import find_config_folder
from ratchet.models.model_kind import POSITIONS_AFTER_PADDING, read_optional
from ratchet.models.pass_size import size_passes

WINDOW = 2048
"""Texts per tokenization call, sorted by their characters. One window is tokenized while another one is embedded."""


class Encoder:
    """An embedder: model, tokenizer and encoding config."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        encoding_config: EncodingConfig,
        projection: torch.nn.Linear | None = None,
    ) -> None:
        self.model = model
        if hasattr(model.config, "use_cache"):
            model.config.use_cache = False  # the KV cache, for generation
        self.projection = projection
        self.tokenizer = tokenizer
        self.tokenize = TextTokenizer(tokenizer, encoding_config)
        self.encoding_config = self.tokenize.encoding_config
        self.device = next(model.parameters()).device
        self.dtype: torch.dtype = model.dtype
        self.takes_positions = _takes_positions(model)
        if self.takes_positions:
            self.padding_side = self.encoding_config.padding_side
        else:
            self.padding_side = "right"
        """Side on which batches are padded. Both give the same vectors, but on the left positions have to be given."""

    @property
    def dim(self) -> int:
        """Dimension of the vectors."""
        if self.projection is not None:
            return self.projection.out_features
        return self.model.config.hidden_size

    def with_config(self, encoding_config: EncodingConfig, base: Path, folder: Path) -> "Encoder":
        """Return an encoder of the same model with another encoding config, whose projection is in `folder`."""
        return _assemble(self.model, base, encoding_config, folder, self.device, self.dtype)

    def save(self, base: Path, folder: Path) -> str:
        """Write a model folder, with the tokenizer of its base, and with the layout of sentence-transformers if that
        library embeds the same with it. Return an empty string, or why the layout is missing. Raises ModelError for
        weights that are not finite."""
        save_weights(self.model, base, folder)
        encoding_config = self.encoding_config
        if self.projection is not None:
            projection.save(self.projection, folder / projection.FOLDER)
            encoding_config = replace(encoding_config, projection=projection.FOLDER)
        encoding_config.write(folder)
        return write_layout(encoding_config, self.model.config.hidden_size, folder)

    def embed(self, input_ids_BL: Tensor, attention_mask_BL: Tensor) -> Tensor:
        """Return pooled (and normalised) vectors [B, D], float32, with gradients for weights that require them. Both
        arguments are int64. Padding may be on either side."""
        options = {}
        # Attention without a mask is faster.
        if not bool(attention_mask_BL.all()):
            options["attention_mask"] = attention_mask_BL
            if self.takes_positions and not bool(attention_mask_BL[:, 0].all()):
                # Left padding: positions start at the text.
                options["position_ids"] = (attention_mask_BL.cumsum(dim=1) - 1).clamp(min=0)
        hidden_BLD = self.model(input_ids=input_ids_BL, **options).last_hidden_state
        pooled_BD = pool(hidden_BLD, attention_mask_BL, self.encoding_config.pooling)
        if self.projection is not None:
            pooled_BD = self.projection(pooled_BD.to(self.projection.weight.dtype)).float()
        if self.encoding_config.normalize:
            return torch.nn.functional.normalize(pooled_BD, dim=-1)
        return pooled_BD

    @torch.no_grad()  # inference mode would make weights that ZeRO-3 gathers unusable for training
    def encode(
        self,
        texts: Sequence[str],
        role: Role,
        tasks: Sequence[str] | None = None,
        examples: Examples | None = None,
        *,
        batch_tokens: int = 16_384,
        progress: Callable[[np.ndarray], None] | None = None,
    ) -> np.ndarray:
        """Return vectors [N, D], float32, in the order of `texts`. Deterministic on the same machine.

        tasks: the instruction of each query; None, or an empty one: that of the encoding config. examples: the few-shot
        examples of each query; None: those of the encoding config. batch_tokens: padded tokens per forward pass, at
        most CPU_TOKENS on CPUs. progress(token counts of the batch's texts) is called after each batch. Raises
        ModelError for a vector that is not finite, and for examples without a template."""
        multiple, batch_tokens = size_passes(self.device.type, batch_tokens)
        out_ND = np.empty((len(texts), self.dim), dtype=np.float32)
        with eval_mode(self.model):
            for places, rows in self._windows(texts, role, tasks, examples):
                lengths = np.array([len(row) for row in rows])
                for batch in batch_by_tokens(lengths, batch_tokens, multiple):
                    side = self.padding_side
                    filler = self.tokenizer.pad_token_id
                    ids_BL, mask_BL = pad([rows[i] for i in batch], filler, side, multiple)
                    vectors_BD = self.embed(ids_BL.to(self.device), mask_BL.to(self.device))
                    out_ND[places[batch]] = vectors_BD.cpu().numpy()
                    if progress:
                        progress(lengths[batch])
        check_finite("embedding of text", out_ND)
        return out_ND

    def _windows(
        self,
        texts: Sequence[str],
        role: Role,
        tasks: Sequence[str] | None,
        examples: Examples | None,
    ) -> Iterator[tuple[np.ndarray, list[list[int]]]]:
        """Yield (indices into `texts`, token ids) of each window, longest texts first. A thread tokenizes one window
        ahead, since the tokenizer releases the GIL."""
        order = np.argsort([-len(text) for text in texts], kind="stable")
        windows = [order[start : start + WINDOW] for start in range(0, len(order), WINDOW)]

        def tokenize(places: np.ndarray) -> list[list[int]]:
            return self.tokenize(
                [texts[i] for i in places],
                role,
                examples and [examples[i] for i in places],
                tasks and [tasks[i] for i in places],
            )

        with ThreadPoolExecutor(1) as ahead:
            waiting = [ahead.submit(tokenize, places) for places in windows[:1]]
            for number, places in enumerate(windows):
                rows = waiting.pop().result()
                for following in windows[number + 1 : number + 2]:
                    waiting.append(ahead.submit(tokenize, following))
                yield places, rows


def load(
    base: Path,
    adapter: Path | None = None,
    *,
    dtype: str = "auto",
    device: str = "auto",
    encoding_config: EncodingConfig | None = None,
    config_folder: Path | None = None,
    **options: Any,
) -> Encoder:
    """Load a model folder as an embedder. A LoRA adapter is merged in float32, before the cast.

    dtype: `float32`, `bfloat16`, or `auto` (bfloat16 on GPUs and on CPUs that multiply it natively). device: `cpu`,
    `cuda`, `auto`, or `balanced` (for inference, see `spread_model`). encoding_config: replaces the one of the adapter
    or the base. config_folder: folder of the projection, by default that of the encoding config. options:
    `training` and `quantization`, see `open_model`. Raises ModelError for an unusable folder."""
    config_folder = config_folder or find_config_folder(base, adapter)
    encoding_config = encoding_config or read_encoding_config(base, adapter)
    model, _ = open_model(
        transformers.AutoModel, base, adapter, dtype=dtype, device=device, **options
    )
    where = resolve_device(device)
    return _assemble(
        model, base, encoding_config, config_folder, where, resolve_dtype(dtype, where)
    )


def _assemble(
    model: Any,
    base: Path,
    encoding_config: EncodingConfig,
    folder: Path,
    device: torch.device,
    dtype: torch.dtype,
) -> Encoder:
    """Return an encoder with the tokenizer of the base and the projection of a folder."""
    tokenizer = load_tokenizer(base, encoding_config)
    layer = None
    if encoding_config.projection:
        width = model.config.hidden_size
        layer = projection.load_layers(encoding_config.projection, width, folder, base)
        layer = layer.to(device, dtype)
    return Encoder(model, tokenizer, encoding_config, layer)


def load_tokenizer(base: Path, encoding_config: EncodingConfig) -> Any:
    """Return the tokenizer of a model folder, with the padding side of an encoding config. Raises ModelError if
    sentence-transformers would lower-case and the tokenizer does not."""
    sides = {"padding_side": encoding_config.padding_side, "truncation_side": "right"}
    tokenizer = transformers.AutoTokenizer.from_pretrained(base, **sides)
    file = base / "sentence_bert_config.json"
    if read_optional(file).get("do_lower_case") and tokenizer.tokenize("A") != tokenizer.tokenize(
        "a"
    ):
        raise ModelError(
            f"{file}: do_lower_case, but the tokenizer keeps capitals; expected both alike; correct one"
        )
    return tokenizer


def _takes_positions(model: Any) -> bool:
    """Whether a model takes `position_ids` that count from 0, and does not derive positions from padding tokens."""
    plain = model.get_base_model() if hasattr(model, "get_base_model") else model
    counts_from_0 = model.config.model_type not in POSITIONS_AFTER_PADDING
    return counts_from_0 and "position_ids" in inspect.signature(plain.forward).parameters


def pool(hidden_BLD: Tensor, attention_mask_BL: Tensor, pooling: str) -> Tensor:
    """Pool hidden states to [B, D], float32: the first token (`cls`), the last one (`last_token`), or the mean over the
    tokens, summed in float32. Padding may be on either side."""
    if pooling == "mean":
        mask_BL1 = attention_mask_BL.unsqueeze(-1).to(hidden_BLD.dtype)
        return (hidden_BLD * mask_BL1).sum(dim=1, dtype=torch.float32) / attention_mask_BL.sum(
            dim=1, keepdim=True
        )
    if pooling == "cls":
        place_B = attention_mask_BL.argmax(dim=1)
    else:
        place_B = attention_mask_BL.shape[1] - 1 - attention_mask_BL.flip(1).argmax(dim=1)
    return hidden_BLD[torch.arange(len(place_B), device=hidden_BLD.device), place_B].float()
