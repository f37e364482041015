"""Layers of adapters: the plan accepts those whose adapter can be trained and merged, for every architecture."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from architectures import ALL_ARCHITECTURES, SIZE, make, mark_rare
from tiny_models import save_model

from ratchet.errors import InputError, ModelError
from ratchet.jobs.answers import sft
from ratchet.jobs.model_checks import check_target_modules
from ratchet.jobs.on_policy import distill, grpo
from ratchet.jobs.retrieval import finetune_embedder, finetune_reranker
from ratchet.jobs.statements import finetune_embedder_pairs
from ratchet.models.adapters import lora
from ratchet.models.embedder import encoder
from ratchet.models.loading import train_in_float32
from ratchet.models.merging import merge
from ratchet.models.reranker import reranker

# They make models of real architectures.
pytestmark = pytest.mark.slow

SMALL = {"vocab_size": 200, "hidden_size": 32, "num_hidden_layers": 2}
CONFIGS: dict[str, Any] = {
    **{
        name: build
        for name, build in ALL_ARCHITECTURES.items()
        if name not in ("mixtral", "qwen3_moe", "gpt_oss")
    },
    "jina_embeddings_v3": lambda: transformers.AutoConfig.for_model("jina_embeddings_v3", **SIZE),
    "ibert": lambda: transformers.IBertConfig(**SIZE),
    "mamba": lambda: transformers.MambaConfig(**SMALL, state_size=4),
    "convbert": lambda: transformers.ConvBertConfig(**SIZE),
    "falcon": lambda: transformers.FalconConfig(**SMALL, num_attention_heads=4),
    "mpt": lambda: transformers.MptConfig(vocab_size=200, d_model=32, n_layers=2, n_heads=4),
    "phi": lambda: transformers.PhiConfig(**SIZE),
    "gpt_bigcode": lambda: transformers.GPTBigCodeConfig(
        vocab_size=200, n_embd=32, n_layer=2, n_head=4
    ),
}
UNFIT = ("ibert", "mamba")
"""Without layers that PEFT adapts."""
USED_AS: dict[str, Any] = {
    "backbone": transformers.AutoModel,
    "causal": transformers.AutoModelForCausalLM,
}


def save(name: str, kind: str, folder: Path) -> Path:
    config = CONFIGS[name]()
    config.pad_token_id = 0
    torch.manual_seed(0)
    USED_AS[kind].from_config(config).save_pretrained(folder)
    return folder


def train_and_merge(base: Path, auto: Any, names: str, folder: Path) -> None:
    model = lora.attach(
        auto.from_pretrained(base),
        lora_r=2,
        lora_alpha=4,
        lora_dropout=0.0,
        target_modules=names,
        seed=0,
    )
    train_in_float32(model)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.1)
    lora.save(model, folder / "adapter")
    merged = lora.load(auto.from_pretrained(base), folder / "adapter").merge_and_unload()
    merged.save_pretrained(folder / "merged")
    ids = torch.arange(3, 9)[None]
    with torch.no_grad():
        expected = model.eval()(input_ids=ids)[0]
        found = auto.from_pretrained(folder / "merged").eval()(input_ids=ids)[0]
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", mark_rare(CONFIGS))
def test_the_plan_accepts_what_can_be_trained_and_merged(name: str, tmp_path: Path) -> None:
    base = save(name, "backbone", tmp_path / "base")
    if name in UNFIT:
        with pytest.raises(
            ModelError, match=r"finetune_embedder\.target_modules: all-linear given"
        ):
            check_target_modules("finetune_embedder", base, "backbone", finetune_embedder.Config())
    else:
        check_target_modules("finetune_embedder", base, "backbone", finetune_embedder.Config())
        train_and_merge(base, USED_AS["backbone"], "all-linear", tmp_path)


@pytest.mark.parametrize(
    "name", mark_rare(["bert", "mpnet", "albert", "electra", "camembert", "longformer", "big_bird"])
)
def test_a_base_without_a_pooler_makes_adapters_that_merge(
    name: str, tiny: dict[str, Path], tmp_path: Path
) -> None:
    """As a checkpoint of a masked language model has none, and the class of the backbone does."""
    base = make(
        name, transformers.AutoModelForMaskedLM, tmp_path / "base", tiny["bert"], pad_token_id=0
    )
    check_target_modules("finetune_embedder", base, "backbone", finetune_embedder.Config())
    model = encoder.load(base, dtype="float32", device="cpu", training=True).model
    adapted = lora.attach(
        model, lora_r=2, lora_alpha=4, lora_dropout=0.0, target_modules="all-linear", seed=0
    )
    lora.save(adapted, tmp_path / "adapter")
    (tmp_path / "merged").mkdir()
    merge(base, tmp_path / "adapter", tmp_path / "merged")


@pytest.mark.parametrize(
    "name", mark_rare(["bert", "mpnet", "electra", "modernbert", "deberta-v2"])
)
def test_a_backbone_gets_a_head_and_merges(
    name: str, tiny: dict[str, Path], tmp_path: Path
) -> None:
    base = make(name, transformers.AutoModel, tmp_path / "base", tiny["bert"], pad_token_id=0)
    check_target_modules("finetune_reranker", base, "classifier", finetune_reranker.Config())
    settings = reranker.RerankerConfig("cross_encoder", 64)
    made = reranker.load(
        base, reranker_config=settings, dtype="float32", device="cpu", training=True
    )
    options: dict[str, Any] = {
        "lora_r": 2,
        "lora_alpha": 4,
        "lora_dropout": 0.0,
        "seed": 0,
        "task": "SEQ_CLS",
    }
    heads = reranker.find_heads(made)
    lora.save(
        lora.attach(made.model, target_modules="all-linear", modules_to_save=heads, **options),
        tmp_path / "adapter",
    )
    (tmp_path / "merged").mkdir()
    merge(base, tmp_path / "adapter", tmp_path / "merged")


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ("embed_tokens", "target_modules: embed_tokens given"),
        ("input_layernorm", "target_modules: input_layernorm given, which PEFT refuses"),
        ("lm_head", "target_modules: 'lm_head' given"),
    ],
)
def test_layers_that_cannot_be_adapted_are_refused(names: str, said: str, tmp_path: Path) -> None:
    base = tmp_path / "base"
    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        **SIZE, num_key_value_heads=2, tie_word_embeddings=True, pad_token_id=0
    )
    transformers.Qwen2ForCausalLM(config).save_pretrained(base)
    with pytest.raises(InputError, match=rf"sft\.{said}"):
        check_target_modules("sft", base, "causal", sft.Config(target_modules=names))


def test_every_job_that_trains_an_adapter_checks_its_layers(tmp_path: Path) -> None:
    """The names are in the files, and are no linear layers."""
    decoder, embedder = (
        save_model(tmp_path / "qwen2", "qwen2"),
        save_model(tmp_path / "bert", "bert"),
    )
    jobs: list[tuple[Any, Path, str]] = [
        (sft, decoder, "embed_tokens"),
        (distill, decoder, "embed_tokens"),
        (grpo, decoder, "embed_tokens"),
        (finetune_embedder, embedder, "word_embeddings"),
        (finetune_embedder_pairs, embedder, "word_embeddings"),
        (finetune_reranker, embedder, "word_embeddings"),
    ]
    for job, base, names in jobs:
        fields = dict.fromkeys(job.Inputs.__dataclass_fields__)
        inputs = job.Inputs(**{**fields, "base": base})
        config = job.Config(target_modules=names)
        with pytest.raises(InputError, match=rf"{job.JOB.name}\.target_modules: {names} given"):
            job.check(config, inputs, {})
        if job is not finetune_embedder_pairs:
            job.check(replace(config, method="full"), inputs, {})
