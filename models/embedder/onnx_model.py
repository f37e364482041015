"""Embedders as ONNX: the transformer without pooling, like `onnx/model.onnx` of models on the hub, and its 8-bit form.

The inputs are `input_ids`, `attention_mask` and, where the tokenizer makes them, `token_type_ids`: int64 [B, L], padded
at the right. The output is `last_hidden_state`, float32 [B, L, D]. Pooling, projection and normalisation come after it,
as sentence-transformers, text-embeddings-inference and Transformers.js expect.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor

from ratchet.errors import ModelError
from ratchet.models.loading import open_model, silence_transformers

MODEL, INT8 = "onnx/model.onnx", "onnx/model_int8.onnx"


class OnnxModel(torch.nn.Module):
    """An ONNX file in the place of a transformer, run by ONNX Runtime on CPUs."""

    def __init__(self, file: Path, base: Path) -> None:
        """base: the folder of the model that the file was made from."""
        import onnxruntime

        super().__init__()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        self.session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        self.names = [one.name for one in self.session.get_inputs()]
        self.config, self.dtype = transformers.AutoConfig.from_pretrained(base), torch.float32

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> SimpleNamespace:
        """Return an object with `last_hidden_state`, float32 [B, L, D]. Arguments: int64 [B, L]."""
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        given = {"input_ids": input_ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(input_ids)}
        (hidden_BLD,) = self.session.run(None, {name: given[name].numpy().astype(np.int64) for name in self.names})
        return SimpleNamespace(last_hidden_state=torch.from_numpy(hidden_BLD))


class _HiddenStates(torch.nn.Module):
    """A transformer that takes its inputs by position and returns the hidden states alone."""

    def __init__(self, model: Any, names: Sequence[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *given: Tensor) -> Tensor:
        return self.model(**dict(zip(self.names, given, strict=True)), use_cache=False).last_hidden_state


def write_onnx(folder: Path) -> None:
    """Write `onnx/model.onnx` into a model folder, in float32: one file, which holds less than 2 GB.

    Raises ModelError for a model that torch cannot export."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, padding_side="right")
    model, _ = open_model(transformers.AutoModel, folder, None, dtype="float32", device="cpu")
    names = [n for n in ("input_ids", "attention_mask", "token_type_ids") if n in tokenizer.model_input_names]
    example = tokenizer(["a short text", "a text of some more words"], padding=True, return_tensors="pt")
    dynamic = torch.export.Dim.DYNAMIC
    try:
        with silence_transformers():
            program = torch.onnx.export(
                _HiddenStates(model, names).eval(),
                tuple(example[name] for name in names),
                input_names=names,
                output_names=["last_hidden_state"],
                dynamic_shapes=(tuple({0: dynamic, 1: dynamic} for _ in names),),
                dynamo=True,
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        raise ModelError(
            f"{folder}: torch cannot export {model.config.model_type} as ONNX ({error}); expected another architecture;"
            " leave onnx out"
        ) from None
    assert program is not None  # with dynamo=True
    (folder / MODEL).parent.mkdir(exist_ok=True)
    program.save(str(folder / MODEL))


def quantize(folder: Path) -> None:
    """Write `onnx/model_int8.onnx` from `onnx/model.onnx`: weights in 8 bits with a scale per channel, activations in 8
    bits with scales that follow the batch. Weights use only 7 bits, so that no sum overflows on CPUs without VNNI."""
    from onnxruntime.quantization import quantize_dynamic

    quantize_dynamic(folder / MODEL, folder / INT8, per_channel=True, reduce_range=True)
