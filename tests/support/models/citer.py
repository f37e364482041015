"""Weights as the theorem scripts of CITER (https://github.com/ajoudaki/CITER) train and save them, implemented anew.

An `AutoModel` with PEFT's LoRA and a linear layer with a bias behind the pooled vector. The pooled vector is the last
token that is no padding (decoders) or the first token (encoders); the tokenizer pads to the full length. Saved are
`NAME_lora_adapters/`, by `save_pretrained`, and `NAME_projection.pt`, the state dict of the linear layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from peft import LoraConfig, TaskType, get_peft_model
from torch import Tensor, nn

TARGETS = {"qwen2": ["q_proj", "v_proj", "k_proj", "o_proj"], "bert": ["query", "key", "value"]}


class ScriptEncoder(nn.Module):
    """In float32, where the scripts cast the vectors of decoders to float16."""

    def __init__(self, base: Path, kind: str, dim: int) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.pools_first = kind == "bert"
        plain = transformers.AutoModel.from_pretrained(base)
        lora = LoraConfig(
            task_type=TaskType.FEATURE_EXTRACTION,
            r=4,
            lora_alpha=8,
            lora_dropout=0.05,
            target_modules=TARGETS[kind],
        )
        self.base_model: Any = get_peft_model(plain, lora)
        self.projection = nn.Linear(plain.config.hidden_size, dim)
        with torch.no_grad():  # as if trained: LoRA's B starts at 0
            for name, weight in self.base_model.named_parameters():
                if "lora_B" in name:
                    weight.normal_(std=0.2)
        self.eval()

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        hidden = self.base_model(
            input_ids=input_ids, attention_mask=attention_mask
        ).last_hidden_state
        place = (
            torch.zeros(len(hidden), dtype=torch.int64)
            if self.pools_first
            else attention_mask.sum(1) - 1
        )
        pooled = hidden[torch.arange(len(hidden)), place]
        return nn.functional.normalize(self.projection(pooled), p=2, dim=-1)

    @torch.no_grad()
    def encode(self, tokenizer: Any, texts: Sequence[str], max_length: int) -> np.ndarray:
        options = {
            "padding": "max_length",
            "truncation": True,
            "max_length": max_length,
            "return_tensors": "pt",
        }
        batch = tokenizer(list(texts), **options)
        vectors: np.ndarray = self(batch["input_ids"], batch["attention_mask"]).numpy()
        return vectors

    def save(self, folder: Path, name: str = "demo") -> tuple[Path, Path]:
        folder.mkdir(parents=True, exist_ok=True)
        adapter, projection = folder / f"{name}_lora_adapters", folder / f"{name}_projection.pt"
        self.base_model.save_pretrained(str(adapter))
        torch.save(self.projection.state_dict(), projection)
        return adapter, projection
