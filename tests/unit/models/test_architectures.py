"""Each way in which a model is used, for each architecture, against plain transformers on one row at a time.

The plain model gets no padding, no shared prefixes and no chunks. Texts are longer than the windows.
`python -m pytest -n 0 -s` on this file prints the largest differences, which docs/large-models.md shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from architectures import ARCHITECTURES, make

from ratchet.models.decoder import decoder
from ratchet.models.decoder.conversation import Tokens
from ratchet.models.decoder.sampling import Sampling, generate
from ratchet.models.embedder import encoder
from ratchet.models.embedder.encoding_config import EncodingConfig
from ratchet.models.losses import causal_lm_loss
from ratchet.models.reranker import reranker
from ratchet.models.reranker.reranker_config import RerankerConfig

# They make models of real architectures.
pytestmark = pytest.mark.slow

DECODERS = [name for name in ARCHITECTURES if "bert" not in name]
TOLERANCE = {"float32": 2e-5, "bfloat16": 5e-2}
"""Relative to the largest value. Batches of another shape round differently in bfloat16."""
GENERATOR = np.random.default_rng(0)
TEXTS = [" ".join(f"w{i}" for i in GENERATOR.integers(0, 9, n)) for n in (3, 90, 41, 17, 60)]
PAIRS = RerankerConfig(
    "yes_no", 400, None, "w1{text}", "w2{text}", "w", "w3w3", answer="w", against="9"
)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Threads cost more than they save on models of this size."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def sample(length: int, prompt: int) -> Tokens:
    ids = GENERATOR.integers(3, 14, length).tolist()
    return Tokens(ids, [at >= prompt for at in range(length)])


SAMPLES = [sample(150, 100), sample(31, 4), sample(90, 60), sample(12, 3)]


def plain(folder: Path, kind: Any, dtype: str) -> Any:
    """The model of transformers, with weights that make attention matter."""
    return kind.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()


def enlarge(folder: Path, kind: Any) -> None:
    """As initialised, weights are so small that attention hardly matters."""
    model = kind.from_pretrained(folder)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2 and "embed" not in name:
                parameter.mul_(6)
    model.save_pretrained(folder)


@pytest.fixture(scope="module")
def folders(tiny: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {}
    for name in ARCHITECTURES:
        kind = transformers.AutoModelForCausalLM if name in DECODERS else transformers.AutoModel
        found[name] = make(name, kind, tmp_path_factory.mktemp(name), tiny["qwen2"])
        enlarge(found[name], kind)
    return found


def compare(job: str, name: str, dtype: str, found: Any, expected: Any) -> None:
    """Compare by the largest difference, relative to the largest expected value."""
    found, expected = (
        torch.as_tensor(np.asarray(one), dtype=torch.float64) for one in (found, expected)
    )
    largest = float((found - expected).abs().max() / expected.abs().max())
    print(f"| {job} | {name} | {dtype} | {largest:.1e} |")
    assert largest < TOLERANCE[dtype]


@pytest.mark.parametrize(
    ("side", "dtype", "training"),
    [
        ("left", "float32", False),
        ("right", "float32", False),
        ("right", "float32", True),
        ("right", "bfloat16", False),
    ],
)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_embed(name: str, side: Any, dtype: str, training: bool, folders: dict[str, Path]) -> None:
    """training: the evaluation of a model that is trained, with attention as in inference."""
    pooling: Any = "last_token" if name in DECODERS else "mean"
    config = EncodingConfig(pooling, max_length=500, padding_side=side)
    ours = encoder.load(
        folders[name], dtype=dtype, device="cpu", encoding_config=config, training=training
    )
    attention = []
    ours.model.register_forward_hook(
        lambda *_: attention.append(ours.model.config._attn_implementation)
    )
    found = ours.encode(TEXTS, "passage")
    assert set(attention) == {"sdpa"}
    assert ours.model.config._attn_implementation == ("eager" if training else "sdpa")
    model = plain(folders[name], transformers.AutoModel, dtype)
    expected = []
    with torch.no_grad():
        for ids in ours.tokenize(TEXTS, "passage"):
            hidden_LD = model(torch.tensor([ids])).last_hidden_state[0].float()
            vector_D = hidden_LD[-1] if pooling == "last_token" else hidden_LD.mean(0)
            expected.append(torch.nn.functional.normalize(vector_D, dim=0).numpy())
    compare(f"embed, {side}", name, dtype, found, np.stack(expected))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", DECODERS)
def test_rerank(name: str, dtype: str, folders: dict[str, Path]) -> None:
    ours = reranker.load(folders[name], dtype=dtype, device="cpu", reranker_config=PAIRS)
    queries, passages = TEXTS[:2], [TEXTS[2:], TEXTS[1:4]]
    found = np.concatenate(ours.score(queries, passages))
    model = plain(folders[name], transformers.AutoModelForCausalLM, dtype)
    expected = []
    with torch.no_grad():
        for query, own in zip(ours.tokens.tokenize(queries, "query"), passages, strict=True):
            for passage in ours.tokens.tokenize(own, "passage"):
                first, second = ours.tokens.split_pair(query, passage)
                logits_V = model(torch.tensor([[*first, *second]])).logits[0, -1].float()
                expected.append(
                    float(logits_V[ours.tokens.answers[0]] - logits_V[ours.tokens.answers[1]])
                )
    compare("rerank", name, dtype, found, expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", DECODERS)
def test_sft(
    name: str, dtype: str, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss and the gradient of the head's input."""
    monkeypatch.setattr(causal_lm_loss, "CHUNK", 20)
    ours = decoder.load(folders[name], dtype=dtype, device="cpu", training=True)
    loss = causal_lm_loss.compute_loss(ours, SAMPLES)
    loss.backward()
    model = plain(folders[name], transformers.AutoModelForCausalLM, dtype)
    total = 0.0
    for one in SAMPLES:
        labels = [
            token if trained else -100 for token, trained in zip(one.ids, one.trained, strict=True)
        ]
        logits_LV = model(torch.tensor([one.ids])).logits[0, :-1].float()
        own = torch.nn.functional.cross_entropy(
            logits_LV, torch.tensor(labels[1:]), reduction="sum"
        )
        own.backward()
        total += float(own.detach())
    compare("sft, loss", name, dtype, float(loss.detach()), total)
    weights = dict(model.named_parameters())
    for weight_name, weight in ours.model.named_parameters():
        if "layers.0" in weight_name and weight.ndim == 2:
            error = float(
                (weight.grad - weights[weight_name].grad).float().norm()
                / weights[weight_name].grad.norm()
            )
            assert error < (1e-4 if dtype == "float32" else 0.1), weight_name


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", DECODERS)
def test_teacher_logprobs(name: str, dtype: str, folders: dict[str, Path]) -> None:
    ours = decoder.load(folders[name], dtype=dtype, device="cpu")
    found = causal_lm_loss.top_logprobs(ours, SAMPLES, 200, 10_000)
    model = plain(folders[name], transformers.AutoModelForCausalLM, dtype)
    expected = []
    for one, teacher in zip(SAMPLES, found, strict=True):
        with torch.no_grad():
            logits_LV = model(torch.tensor([one.ids])).logits[0].float()
        own = torch.log_softmax(logits_LV, dim=-1)[np.flatnonzero(one.trained) - 1]
        expected.append(own.gather(1, torch.from_numpy(teacher.ids_TK.astype(np.int64))).numpy())
    logprobs = [teacher.logprob_TK for teacher in found]
    compare("teacher_logprobs", name, dtype, np.concatenate(logprobs), np.concatenate(expected))


@pytest.mark.parametrize("name", DECODERS)
def test_generate(name: str, folders: dict[str, Path]) -> None:
    """Greedy answers to prompts of different lengths, in one batch: left padding, cache, windows."""
    ours = decoder.load(folders[name], dtype="float32", device="cpu")
    prompts = [one.ids for one in SAMPLES]
    sampling = Sampling(temperature=0, max_new_tokens=12)
    found = generate(ours, prompts, [str(i) for i in range(len(prompts))], sampling)
    model = plain(folders[name], transformers.AutoModelForCausalLM, "float32")
    for prompt, answer in zip(prompts, found, strict=True):
        with torch.no_grad():
            logits_LV = model(torch.tensor([prompt + answer]), use_cache=False).logits[
                0, len(prompt) - 1 : -1
            ]
        lacking = (
            logits_LV.max(dim=1).values - logits_LV[torch.arange(len(answer)), torch.tensor(answer)]
        )
        assert float(lacking.max()) < 1e-3 * float(logits_LV.std())
        assert len(answer) == 12 or answer[-1] in ours.conversations.ends
