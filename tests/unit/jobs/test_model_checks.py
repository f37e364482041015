"""Models that could not be loaded or would fail later are refused by the checks of jobs, before weights are read."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from architectures import ALL_ARCHITECTURES, make, mark_rare, trained
from safetensors.torch import save_file
from tokenizers import processors

from ratchet.errors import RatchetError
from ratchet.jobs.answers import generate, sft, teacher_logprobs
from ratchet.jobs.export import export_model
from ratchet.jobs.indexes import build_index
from ratchet.jobs.model_checks import check_as_used, check_embedder_model, read_size
from ratchet.jobs.on_policy import distill, grpo
from ratchet.jobs.retrieval import embed, finetune_embedder, finetune_reranker, merge, rerank
from ratchet.models.embedder import encoder
from ratchet.models.embedder.encoding_config import read_encoding_config

# They make models of real architectures.
pytestmark = pytest.mark.slow

Edit = Callable[[Path], None]
EMBEDDER_JOBS: list[tuple[Any, str, dict[str, None]]] = [
    (embed, "model", {"texts": None}),
    (finetune_embedder, "base", {"mined": None, "corpus": None}),
    (build_index, "model", {"vectors": None, "texts": None}),
    (export_model, "model", {}),
]
RERANKER_JOBS: list[tuple[Any, str, dict[str, None]]] = [
    (rerank, "model", {"lists": None, "corpus": None}),
    (finetune_reranker, "base", {"mined": None, "corpus": None}),
    (export_model, "model", {}),
]
DECODER_JOBS: list[tuple[Any, str, dict[str, None]]] = [
    (generate, "model", {"samples": None}),
    (sft, "base", {"train": None, "valid": None}),
]


def change(name: str, **values: object) -> Edit:
    """Return an edit of a JSON file of a folder."""

    def edit(folder: Path) -> None:
        about = json.loads((folder / name).read_text()) if (folder / name).is_file() else {}
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps({**about, **values}))

    return edit


def drop_tokens(folder: Path) -> None:
    """Leave a tokenizer without a padding token and an end-of-sequence token."""
    file = folder / "tokenizer_config.json"
    about = {
        name: value
        for name, value in json.loads(file.read_text()).items()
        if name not in ("pad_token", "eos_token")
    }
    file.write_text(json.dumps(about))


def add_dense(activation: str, in_features: int = 32) -> Edit:
    def edit(folder: Path) -> None:
        change("1_Pooling/config.json", pooling_mode_mean_tokens=True)(folder)
        names = {"Transformer": "", "Pooling": "1_Pooling", "Dense": "2_Dense"}
        modules = [
            {"path": path, "type": f"sentence_transformers.models.{name}"}
            for name, path in names.items()
        ]
        (folder / "modules.json").write_text(json.dumps(modules))
        change(
            "2_Dense/config.json",
            in_features=in_features,
            out_features=8,
            activation_function=activation,
        )(folder)
        save_file(
            {"linear.weight": torch.zeros(8, in_features)}, folder / "2_Dense/model.safetensors"
        )

    return edit


def refusal(job: Any, field: str, others: dict[str, None], folder: Path, **settings: object) -> str:
    with pytest.raises(RatchetError) as found:
        job.JOB.check(job.Config(**settings), job.Inputs(**{field: folder, **others}), {})
    return str(found.value)


EMBEDDERS: dict[str, tuple[str, Edit, str]] = {
    "gptq": (
        "bert",
        change("config.json", quantization_config={"quant_method": "gptq"}),
        r"quantization_config .*gptq",
    ),
    "fp8 of a part": (
        "qwen2",
        change("config.json", text_config={"quantization_config": {"a": 1}}),
        "quantization_config",
    ),
    "no pad and no eos": ("bert", drop_tokens, "no padding token and no end-of-sequence token"),
    "token added on load": (
        "bert",
        change("tokenizer_config.json", mask_token="[NEW]"),
        r"ids up to 43 \('\[NEW\]'\)",
    ),
    "T5 encoder": (
        "bert",
        change("config.json", model_type="t5", architectures=["T5EncoderModel"]),
        "encoder of an enc",
    ),
    "encoder-decoder": (
        "bert",
        change("config.json", model_type="m2m_100", architectures=[]),
        "is no embedder",
    ),
    "tanh": ("bert", add_dense("torch.nn.modules.activation.Tanh"), "Tanh; expected"),
    "dense of another width": (
        "bert",
        add_dense("torch.nn.modules.linear.Identity", 24),
        "from 24 dimensions",
    ),
    "broken config": (
        "bert",
        change("config.json", num_attention_heads="four"),
        "transformers cannot open its config",
    ),
    "long texts": (
        "bert",
        change("encoding_config.json", pooling="mean", max_length=65),
        "65 tokens given; expected at",
    ),
}


@pytest.mark.parametrize("name", EMBEDDERS)
@pytest.mark.parametrize(("job", "field", "others"), EMBEDDER_JOBS)
def test_embedders(
    job: Any, field: str, others: Any, name: str, tiny: dict[str, Path], tmp_path: Path
) -> None:
    kind, edit, expected = EMBEDDERS[name]
    folder = shutil.copytree(tiny[kind], tmp_path / "model")
    job.JOB.check(job.Config(), job.Inputs(**{field: folder, **others}), {})  # before the edit
    edit(folder)
    found = refusal(job, field, others, folder)
    assert re.search(expected, found)


@pytest.mark.parametrize("given", [1024, 64])
def test_length_is_limited_by_positions(tiny: dict[str, Path], tmp_path: Path, given: int) -> None:
    folder = make(
        "xlm-roberta", transformers.AutoModel, tmp_path / "model", tiny["bert"], pad_token_id=0
    )
    change("sentence_bert_config.json", max_seq_length=given)(folder)
    found = read_encoding_config(folder)
    assert found.max_length == min(given, 513)
    vectors = encoder.load(folder, dtype="float32", device="cpu").encode(["w1 " * 1024], "passage")
    assert vectors.shape == (1, 128)
    with pytest.raises(RatchetError, match=r"514 tokens given; expected at most 513"):
        check_embedder_model(folder, replace(found, max_length=514))


def test_padding_offset_of_positions(tiny: dict[str, Path], tmp_path: Path) -> None:
    folder = make(
        "xlm-roberta", transformers.AutoModel, tmp_path / "model", tiny["bert"], pad_token_id=5
    )
    with pytest.raises(RatchetError, match=r"pad_token_id 5 in config.json, 0 in the tokenizer"):
        check_as_used(folder)


@pytest.mark.parametrize(("job", "field", "others"), RERANKER_JOBS)
def test_classifiers_of_several_classes(
    job: Any, field: str, others: Any, tiny: dict[str, Path], tmp_path: Path
) -> None:
    """Also where a reranker config was written beside them."""
    kind = transformers.AutoModelForSequenceClassification
    folder = make(
        "bert", kind, tmp_path / "model", tiny["bert"], id2label={i: str(i) for i in range(3)}
    )
    assert "a classifier of 3 classes" in refusal(job, field, others, folder)
    change("reranker_config.json", kind="cross_encoder")(folder)
    assert "a classifier of 3 classes" in refusal(job, field, others, folder)


@pytest.mark.parametrize(("job", "field", "others"), RERANKER_JOBS)
def test_rerankers(
    job: Any, field: str, others: Any, tiny: dict[str, Path], tmp_path: Path
) -> None:
    kind = transformers.AutoModelForSequenceClassification
    one = make(
        "bert", kind, tmp_path / "one", tiny["bert"], num_labels=1, max_position_embeddings=64
    )
    job.JOB.check(job.Config(), job.Inputs(**{field: one, **others}), {})
    change("reranker_config.json", kind="cross_encoder", max_length=65)(one)
    assert "65 tokens given; expected at most 64" in refusal(job, field, others, one)
    causal = make("gemma2", transformers.AutoModelForCausalLM, tmp_path / "two", tiny["qwen2"])
    change("reranker_config.json", kind="yes_no", answer="1")(causal)
    assert "final_logit_softcapping" in refusal(job, field, others, causal)
    change("config.json", final_logit_softcapping=None)(causal)
    job.JOB.check(job.Config(), job.Inputs(**{field: causal, **others}), {})
    change("reranker_config.json", answer="12")(causal)
    assert "the answer '12' is 2 tokens" in refusal(job, field, others, causal)


@pytest.mark.parametrize(
    ("job", "name", "most", "given"),
    [
        (generate, "max_prompt_length", 32, {"max_new_tokens": 32}),
        (grpo, "max_prompt_length", 32, {"max_new_tokens": 32, "steps": 9}),
        (distill, "max_length", 32, {"max_new_tokens": 32}),
        (sft, "max_length", 64, {}),
        (teacher_logprobs, "max_length", 64, {}),
    ],
)
def test_default_lengths_fit_learned_positions(
    job: Any, name: str, most: int, given: dict[str, int], tiny: dict[str, Path]
) -> None:
    """A default adapts to the model, and the plan names it. A length that is given and too large is refused."""
    folder, names = tiny["gpt2"], job.Inputs.__dataclass_fields__
    others = {field: folder if field in ("model", "base", "student") else None for field in names}
    inputs = job.Inputs(**others)
    job.JOB.check(job.Config(**given), inputs, {})
    assert (
        job.JOB.check(job.Config(**given), inputs, {}).note
        == f"{name}={most}, by the positions of the model"
    )
    job.JOB.check(job.Config(**given, **{name: most}), inputs, {})
    assert job.JOB.check(job.Config(**given, **{name: most}), inputs, {}).note == ""
    with pytest.raises(
        RatchetError, match=f"{most + 1 if most == 64 else 65} tokens given; expected at most 64"
    ):
        job.JOB.check(job.Config(**given, **{name: most + 1}), inputs, {})


def test_widths_have_the_names_of_their_architectures(
    tiny: dict[str, Path], tmp_path: Path
) -> None:
    for name in ("bert", "distilbert", "gpt2", "bloom", "opt", "qwen3_moe"):
        folder = make(name, transformers.AutoModel, tmp_path / name, tiny["qwen2"])
        assert read_size(folder, "hidden_size") == 128
        assert (
            read_size(folder, "num_hidden_layers") == read_size(folder, "num_attention_heads") == 2
        )


def test_sizes_that_are_not_written_are_those_of_the_class(
    tiny: dict[str, Path], tmp_path: Path
) -> None:
    folder = make("llama", transformers.AutoModel, tmp_path / "model", tiny["qwen2"])
    about = json.loads((folder / "config.json").read_text())
    for name in ("hidden_size", "num_hidden_layers", "num_attention_heads"):
        del about[name]
    (folder / "config.json").write_text(json.dumps(about))
    usual = transformers.LlamaConfig()
    assert read_size(folder, "hidden_size") == usual.hidden_size
    assert read_size(folder, "num_hidden_layers") == usual.num_hidden_layers


def test_merging_opens_the_tokenizer(tiny: dict[str, Path], tmp_path: Path) -> None:
    base = make("bert", transformers.AutoModel, tmp_path / "base", tiny["bert"], pad_token_id=0)
    trained(
        transformers.AutoModel.from_pretrained(base), [], "FEATURE_EXTRACTION", tmp_path / "adapter"
    )
    inputs = merge.Inputs(base, tmp_path / "adapter", None)  # type: ignore[arg-type]
    merge.JOB.check(merge.Config(), inputs, {})
    change("config.json", vocab_size=20)(base)
    with pytest.raises(RatchetError, match="has ids up to"):
        merge.JOB.check(merge.Config(), inputs, {})
    change("config.json", vocab_size=200)(base)
    drop_tokens(base)
    with pytest.raises(RatchetError, match="no padding token and no end-of-sequence token"):
        merge.JOB.check(merge.Config(), inputs, {})


def test_padding_with_the_end_token_is_refused(tiny_decoder: Path, tmp_path: Path) -> None:
    """Scored at the end before its merge, and at the token before the end with the merged config."""
    options: dict[str, Any] = {"vocab_size": 400, "pad_token_id": None}
    folder = make("qwen2", transformers.AutoModel, tmp_path / "model", tiny_decoder, **options)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = end = tokenizer.eos_token
    tokenizer.save_pretrained(folder)
    jobs: list[tuple[Any, str, dict[str, None]]] = [*RERANKER_JOBS]
    change("reranker_config.json", kind="cross_encoder", max_length=64)(folder)
    for job, field, others in jobs:
        job.JOB.check(job.Config(), job.Inputs(**{field: folder, **others}), {})
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {end}", pair=f"$A $B {end}", special_tokens=[(end, tokenizer.eos_token_id)]
    )
    tokenizer.save_pretrained(folder)
    for job, field, others in jobs:
        assert "which also ends its pairs" in refusal(job, field, others, folder)
    change("config.json", pad_token_id=tokenizer.eos_token_id)(folder)  # as other libraries read it
    for job, field, others in jobs:
        job.JOB.check(job.Config(), job.Inputs(**{field: folder, **others}), {})


@pytest.mark.parametrize("name", mark_rare(ALL_ARCHITECTURES))
def test_usual_models_are_accepted(name: str, tiny: dict[str, Path], tmp_path: Path) -> None:
    tokens = {"pad_token_id": 0}
    folder = make(name, transformers.AutoModel, tmp_path / "model", tiny["qwen2"], **tokens)
    check_embedder_model(folder, read_encoding_config(folder))
