"""Run as a program with cases (name -> work, folder, adapter, dtype) as JSON: embeds, scores or answers on the CPU and
over two pretended GPUs. Prints name -> {plain, spread: numbers; places: devices by module; rotary: dtypes} as JSON.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import compute_module_sizes
from pretended_gpus import pretended_gpus

from ratchet.models import loading
from ratchet.models.decoder import decoder
from ratchet.models.decoder.sampling import Sampling, generate
from ratchet.models.embedder import encoder
from ratchet.models.losses.causal_lm_loss import top_logprobs
from ratchet.models.reranker import reranker

TEXTS = ["one", "the second text is longer than the others", "", "three words here"] * 3
PASSAGES = [["yes it is", "no"], ["a passage of some more words", "another", "the last one"]]


def embed(folder: Path, adapter: Path | None, **options: Any) -> tuple[Any, list[float]]:
    own = encoder.load(folder, adapter, **options)
    return own.model, own.encode(TEXTS, "query", batch_tokens=64).ravel().tolist()


def score(folder: Path, adapter: Path | None, **options: Any) -> tuple[Any, list[float]]:
    own = reranker.load(folder, adapter, **options)
    return own.model, [float(one) for row in own.score(TEXTS[:2], PASSAGES) for one in row]


def answer(folder: Path, adapter: Path | None, **options: Any) -> tuple[Any, list[float]]:
    own = decoder.load(folder, adapter, **options)
    prompts = [own.tokenizer(text)["input_ids"] for text in TEXTS if text]
    found = [
        generate(
            own,
            prompts,
            list(map(str, range(len(prompts)))),
            Sampling(temperature, max_new_tokens=6, seed=1),
        )
        for temperature in (0.0, 1.0)
    ]
    sample = own.conversations.tokenize_sample("", ["How many?"], ["three words"])
    (teacher,) = top_logprobs(own, [sample], 4, own.model.config.vocab_size)
    return own.model, [
        float(one) for ids in found for row in ids for one in row
    ] + teacher.logprob_TK.ravel().tolist()


WORK = {"embed": embed, "score": score, "answer": answer}


@contextlib.contextmanager
def two_gpus() -> Iterator[None]:
    """`balanced` places models on the pretended GPUs."""
    balance, dispatch, resolve = (
        loading.get_balanced_memory,
        loading.dispatch_model,
        encoder.resolve_device,
    )

    def place(model: Any, places: dict[str, int], main_device: int, **options: Any) -> Any:
        named = {name: f"pretended:{number}" for name, number in places.items()}
        return dispatch(model, named, main_device=f"pretended:{main_device}", **options)

    # Accelerate puts a model of two layers on one.
    loading.get_balanced_memory = lambda model, *_, **__: {
        0: compute_module_sizes(model)[""] * 6 // 10,
        1: 10**9,
    }
    loading.dispatch_model = place
    encoder.resolve_device = lambda device: torch.device("pretended:0")
    with pretended_gpus(), torch.no_grad():
        yield
    loading.get_balanced_memory, loading.dispatch_model, encoder.resolve_device = (
        balance,
        dispatch,
        resolve,
    )


def compare(work: str, folder: str, adapter: str | None, dtype: str) -> dict[str, Any]:
    given = (Path(folder), None if adapter is None else Path(adapter))
    _, plain = WORK[work](*given, device="cpu", dtype=dtype)
    with two_gpus():
        model, spread = WORK[work](*given, device="balanced", dtype=dtype)
        rotary = {str(one.dtype) for name, one in model.named_buffers() if "inv_freq" in name}
        return {
            "plain": plain,
            "spread": spread,
            "places": model.hf_device_map,
            "rotary": sorted(rotary),
        }


if __name__ == "__main__":
    print(json.dumps({name: compare(*case) for name, case in json.loads(sys.argv[1]).items()}))
