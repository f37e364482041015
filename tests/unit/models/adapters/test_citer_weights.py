"""Adapters and projections of CITER's theorem scripts: merged models give the same vectors; other files are refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from citer import ScriptEncoder
from safetensors.torch import load_file, save_file

from ratchet.errors import ModelError
from ratchet.jobs.retrieval.merge import Config, Inputs, check
from ratchet.models import merging
from ratchet.models.adapters import lora
from ratchet.models.embedder import encoder
from ratchet.models.embedder.encoding_config import EncodingConfig, read_encoding_config
from ratchet.orchestrator.cli.main import main

TEXTS = [
    "w1",
    "w2 w3 w4",
    "w5 w6 w7 w8 w9 w10 w11 w12 w13 w14 w15 w16 w17 w18 w19 w20",
    "w21 w1 w22",
]
LENGTH = 12


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["qwen2", "bert"])
def test_the_merged_model_embeds_as_the_scripts_do(
    kind: str, tiny: dict[str, Path], tmp_path: Path
) -> None:
    base = tiny[kind]
    theirs = ScriptEncoder(base, kind, 24)
    adapter, projection = theirs.save(tmp_path / "outputs")
    expected = theirs.encode(transformers.AutoTokenizer.from_pretrained(base), TEXTS, LENGTH)
    merged = tmp_path / "merged"
    merged.mkdir()
    check(Config(), Inputs(base, adapter, tmp_path, projection), {})
    merging.merge(base, adapter, merged, projection)
    given = read_encoding_config(merged)
    pooling: Any = "cls" if kind == "bert" else "last_token"
    assert given == EncodingConfig(pooling, max_length=64, projection="2_Dense")
    settings = EncodingConfig(pooling, max_length=LENGTH, projection="2_Dense")
    found = encoder.load(merged, dtype="float32", device="cpu", encoding_config=settings).encode(
        TEXTS, "passage"
    )
    assert found.shape == (len(TEXTS), 24)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    plain = encoder.load(
        base, dtype="float32", device="cpu", encoding_config=settings, config_folder=merged
    )
    assert np.abs(plain.encode(TEXTS, "passage") - expected).max() > 1e-2, "the adapter matters"


class Code:
    """What runs when it is unpickled."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return Path.touch, (Path("was-run"),)  # type: ignore[return-value]


def _damage(projection: Path) -> None:
    projection.write_bytes(projection.read_bytes()[:200])


def _change(adapter: Path, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    weights = {name: change(weight) for name, weight in load_file(adapter / lora.WEIGHTS).items()}
    save_file(weights, adapter / lora.WEIGHTS, metadata={"format": "pt"})


def _set_config(adapter: Path, **values: Any) -> None:
    about = json.loads((adapter / lora.CONFIG).read_text())
    about.update(values)
    (adapter / lora.CONFIG).write_text(json.dumps(about))


BAD: dict[str, tuple[Callable[[Path, Path], Any], str]] = {
    "no adapter config": (
        lambda a, p: (a / lora.CONFIG).unlink(),
        "adapter .*: no adapter_config.json and",
    ),
    "an older weights file": (
        lambda a, p: (a / lora.WEIGHTS).rename(a / "adapter_model.bin"),
        "no adapter_config",
    ),
    "a damaged config": (
        lambda a, p: (a / lora.CONFIG).write_text("{"),
        "adapter_config.json: not JSON",
    ),
    "damaged weights": (
        lambda a, p: (a / lora.WEIGHTS).write_bytes(b"x" * 9),
        "adapter .*: does not fit the model",
    ),
    "another variant": (
        lambda a, p: _set_config(a, init_lora_weights="pissa"),
        "init_lora_weights=pissa; expected an adapter that keeps its base",
    ),
    "a Dense layer of another width": (
        lambda a, p: torch.save(torch.nn.Linear(16, 24).state_dict(), p),
        "projection .*: from 16 dimensions, .*; expected from 32",
    ),
    "two layers": (
        lambda a, p: torch.save(
            torch.nn.Sequential(*[torch.nn.Linear(32, 32)] * 2).state_dict(), p
        ),
        "projection .*: cannot be read .*one linear layer",
    ),
    "more than a layer": (
        lambda a, p: torch.save(torch.nn.BatchNorm1d(32).state_dict(), p),
        "projection .*: cannot be read .*one linear layer",
    ),
    "a tensor": (lambda a, p: torch.save(torch.ones(3), p), "projection .*: cannot be read"),
    "code": (lambda a, p: torch.save({"weight": Code()}, p), "projection .*: cannot be read"),
    "a cut file": (lambda a, p: _damage(p), "projection .*: cannot be read"),
}


@pytest.fixture(scope="module")
def saved(tiny: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("outputs")
    ScriptEncoder(tiny["qwen2"], "qwen2", 24).save(folder)
    return folder


@pytest.mark.parametrize("name", BAD)
def test_what_does_not_fit_is_refused(
    name: str, saved: Path, tiny: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(saved, tmp_path / "outputs")
    adapter, projection = (
        tmp_path / "outputs/demo_lora_adapters",
        tmp_path / "outputs/demo_projection.pt",
    )
    change, said = BAD[name]
    change(adapter, projection)
    with pytest.raises(ModelError, match=said):
        check(Config(), Inputs(tiny["qwen2"], adapter, tmp_path, projection), {})
    assert not Path("was-run").exists()


def test_an_adapter_of_another_architecture_is_refused(
    saved: Path, tiny: dict[str, Path], tmp_path: Path
) -> None:
    adapter = saved / "demo_lora_adapters"
    with pytest.raises(ModelError, match="expected an adapter of this base"):
        check(Config(), Inputs(tiny["bert"], adapter, tmp_path), {})
    note = check(Config(), Inputs(tiny["qwen2"], adapter, tmp_path), {}).note
    assert note == f"the adapter was trained on {tiny['qwen2']}"


def test_plan_takes_adapter_and_projection(
    saved: Path, tiny: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        {"arxiv_id": f"p{i}", "lemmas": [f"w{i} w1"], "theorems": [f"w{i} w2"]} for i in range(40)
    ]
    (tmp_path / "papers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def plan(*lines: str) -> tuple[int, str]:
        given = (
            f"data={tmp_path / 'papers.jsonl'}",
            f"base={tiny['qwen2']}",
            "finetune_embedder_pairs.batch_size=8",
        )
        options = [word for line in (*given, *lines) for word in ("--set", line)]
        status = main(["plan", "theorems", *options, "--store", str(tmp_path / "store")])
        captured = capsys.readouterr()
        return status, captured.out + captured.err

    status, said = plan(f"adapter={saved / 'demo_lora_adapters'}")
    assert status == 0, said
    assert "start/merge: the adapter was trained on" in said
    assert "start/evaluate" in said
    assert "zero_shot" not in said
    shutil.copytree(saved / "demo_lora_adapters", tmp_path / "other_lora_adapters")
    status, said = plan(f"adapter={tmp_path / 'other_lora_adapters'}")
    assert status == 2
    assert "other_projection.pt" in said, "the projection is not left out silently"
    torch.save(torch.nn.Linear(16, 8).state_dict(), tmp_path / "other_projection.pt")
    status, said = plan(f"adapter={tmp_path / 'other_lora_adapters'}")
    assert status == 2
    assert "from 16 dimensions" in said
    status, said = plan(f"projection={saved / 'demo_projection.pt'}")
    assert status == 2
    assert "given, without adapter; expected both; set adapter=FOLDER too" in said
