"""Exported folders: other libraries give the same results as Ratchet."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from architectures import ARCHITECTURES, make, trained
from other_libraries import compare_decoder, compare_embedder, compare_reranker
from peft import AutoPeftModelForCausalLM

from ratchet.errors import InputError
from ratchet.jobs.export.export_model import JOB, Config, Inputs, run
from ratchet.models.embedder.encoding_config import EncodingConfig, read_encoding_config
from ratchet.models.model_files import MINILM, resolve
from ratchet.models.reranker import reranker
from ratchet.models.reranker.reranker_config import RerankerConfig
from ratchet.orchestrator.atomic_file import make_read_only, set_read_only
from ratchet.orchestrator.job_interface import Context, Result

pytestmark = pytest.mark.slow

MakeContext = Callable[..., Context]
ENCODERS = ("bert", "xlm-roberta", "modernbert")


@pytest.fixture(scope="module")
def minilm() -> Path:
    return resolve(MINILM)


def export(
    context: Context, model: Path, adapter: Path | None = None, **values: Any
) -> tuple[Path, Result]:
    config, inputs = Config(**values), Inputs(model, adapter)
    assert JOB.check
    JOB.check(config, inputs, {})
    result = run(context, config, inputs)
    return context.out / "model", result


def make_base(architecture: str, auto: Any, folder: Path, minilm: Path) -> Path:
    """Save a random model with MiniLM's tokenizer, with an end, and room for tokens that other classes add."""
    base = make(architecture, auto, folder, minilm, vocab_size=30528, pad_token_id=0)
    transformers.AutoTokenizer.from_pretrained(minilm, eos_token="[SEP]").save_pretrained(base)
    return base


def make_adapter(base: Path, kind: str, folder: Path) -> Path:
    """Return an adapter of an embedder, reranker or decoder."""
    torch.manual_seed(0)
    if kind == "embedder":
        trained(transformers.AutoModel.from_pretrained(base), [], "FEATURE_EXTRACTION", folder)
        read_encoding_config(base).write(folder)
    elif kind == "decoder":
        trained(transformers.AutoModelForCausalLM.from_pretrained(base), [], "CAUSAL_LM", folder)
    else:
        config = RerankerConfig(
            "yes_no" if kind == "yes_no" else "cross_encoder", answer="a", prompt="Relevant?"
        )
        one = reranker.load(
            base, dtype="float32", device="cpu", training=True, reranker_config=config
        )
        task = "CAUSAL_LM" if kind == "yes_no" else "SEQ_CLS"
        trained(one.model, reranker.find_heads(one), task, folder)
        config.write(folder)
    return folder


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("form", ["model", "adapter"])
def test_embedders_of_all_architectures(
    architecture: str, form: str, minilm: Path, context: MakeContext, tmp_path: Path
) -> None:
    base = make_base(architecture, transformers.AutoModel, tmp_path / "base", minilm)
    pooling = "mean" if architecture in ENCODERS else "last_token"
    EncodingConfig(pooling, query_template="query: {text}", max_length=256).write(base)  # type: ignore[arg-type]
    folder, _ = export(
        context(), base, make_adapter(base, "embedder", tmp_path / "adapter"), form=form
    )
    given = (base, "float32", folder) if form == "adapter" else (folder, "float32")
    differences = compare_embedder(*given)
    expected = {"PEFT"} if form == "adapter" else {"sentence_transformers", "transformers"}
    assert expected <= set(differences)
    assert max(differences.values()) < 1e-5
    assert (folder / "modules.json").exists() == (form == "model")


@pytest.mark.parametrize(
    ("kind", "architecture", "libraries"),
    [
        ("cross_encoder", "bert", {"sentence_transformers", "transformers"}),
        ("cross_encoder", "xlm-roberta", {"sentence_transformers", "transformers"}),
        ("yes_no", "qwen2", {"transformers"}),
        ("yes_no", "gemma3", {"transformers"}),
        ("decoder", "qwen3", {"PEFT"}),
        ("decoder", "llama", {"PEFT"}),
    ],
)
def test_merged_rerankers_and_decoders(
    kind: str,
    architecture: str,
    libraries: set[str],
    minilm: Path,
    context: MakeContext,
    tmp_path: Path,
) -> None:
    auto = transformers.AutoModel if architecture in ENCODERS else transformers.AutoModelForCausalLM
    base = make_base(architecture, auto, tmp_path / "base", minilm)
    adapter = make_adapter(base, kind, tmp_path / "adapter")
    folder, result = export(context(), base, adapter)
    if kind == "decoder":
        differences = compare_decoder(folder, "float32", base, adapter)
    else:
        differences = compare_reranker(folder, "float32")
    assert set(differences) == libraries
    assert max(differences.values()) < 1e-4
    assert result.metrics["kind"] == ("decoder" if kind == "decoder" else "reranker")
    assert "adapter_config.json" not in {path.name for path in folder.iterdir()}


def test_an_adapter_names_its_base(minilm: Path, context: MakeContext, tmp_path: Path) -> None:
    base = make_base("qwen2", transformers.AutoModelForCausalLM, tmp_path / "base", minilm)
    adapter = make_adapter(base, "decoder", tmp_path / "adapter")
    folder, _ = export(
        context(), base, adapter, form="adapter", base_name=str(base), card="# A card"
    )
    assert json.loads((folder / "adapter_config.json").read_text())[
        "base_model_name_or_path"
    ] == str(base)
    assert (
        AutoPeftModelForCausalLM.from_pretrained(str(folder)).base_model.model.config.hidden_size
        == 128
    )
    assert (folder / "README.md").read_text() == "# A card"
    assert (adapter / "adapter_config.json").read_text() != (
        folder / "adapter_config.json"
    ).read_text()


def test_a_published_model_is_copied_without_other_formats(
    minilm: Path, context: MakeContext
) -> None:
    folder, _ = export(context(), minilm)
    assert (folder / "model.safetensors").read_bytes() == (
        minilm / "model.safetensors"
    ).read_bytes()
    differences = compare_embedder(folder, "float32")
    assert {"sentence_transformers", "transformers"} <= set(differences)
    assert max(differences.values()) < 1e-5


@pytest.mark.parametrize("form", ["model", "adapter"])
def test_what_the_store_made_read_only_is_written_to(
    form: str, minilm: Path, context: MakeContext, tmp_path: Path
) -> None:
    """By its bits, since tests may run as root, who may write everything."""
    base = make("bert", transformers.AutoModel, tmp_path / "base", minilm, vocab_size=30522)
    EncodingConfig("mean").write(base)
    given = (
        (base, make_adapter(base, "embedder", tmp_path / "adapter"))
        if form == "adapter"
        else (base, None)
    )
    for folder in filter(None, given):
        make_read_only(folder)
        set_read_only(folder)
    folder, _ = export(context(), *given, form=form, card="# A card")
    assert all(path.stat().st_mode & 0o200 for path in (folder, *folder.rglob("*")))


def test_an_adapter_alone_needs_one(minilm: Path, context: MakeContext) -> None:
    none: Any = None
    assert JOB.check
    JOB.check(
        Config("adapter"), Inputs(none), {}
    )  # at plan time the adapter's step may be still to come
    with pytest.raises(
        InputError, match=r"export_model.form: adapter given, for a model without one"
    ):
        export(context(), minilm, form="adapter")
