from __future__ import annotations

import json
import re
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.errors import ModelError
from ratchet.models.embedder import encoder
from ratchet.models.embedder.encoding_config import MAX_LENGTH, EncodingConfig, read_encoding_config
from ratchet.models.model_files import ENCODING_CONFIG_FILE

# Anything in braces would be a placeholder, such as {0}.
TEMPLATES = (
    st.text(max_size=20)
    .filter(lambda text: not re.search(r"{\w+}", text))
    .map(lambda text: text + "{text}")
)


@pytest.mark.slow
@given(
    st.builds(
        EncodingConfig,
        st.sampled_from(["cls", "mean", "last_token"]),
        st.booleans(),
        st.integers(4, 9000),
        TEMPLATES,
        TEMPLATES,
        st.sampled_from(["left", "right"]),
        st.booleans(),
    )
)
def test_what_is_written_is_read(given_config: EncodingConfig) -> None:
    with tempfile.TemporaryDirectory() as folder:
        given_config.write(Path(folder))
        assert read_encoding_config(Path(folder)) == given_config


def test_minilm_is_read_from_its_layout(minilm: Path) -> None:
    assert read_encoding_config(minilm) == EncodingConfig("mean", True, 256)


def test_bare_folders_go_by_their_architecture(tiny: dict[str, Path]) -> None:
    assert read_encoding_config(tiny["bert"]) == EncodingConfig("mean", max_length=64)
    assert read_encoding_config(tiny["qwen2"]) == EncodingConfig(
        "last_token", max_length=64, padding_side="left", add_eos=True
    )
    assert read_encoding_config(tiny["gpt2"]).pooling == "last_token"


@pytest.mark.parametrize(
    ("architecture", "kind", "decoder"),
    [
        ("MistralModel", "mistral", True),
        ("Qwen3ForCausalLM", "qwen3", True),
        ("XLMRobertaModel", "xlm-roberta", False),
        ("ModernBertForMaskedLM", "modernbert", False),
        ("MPNetForMaskedLM", "mpnet", False),
        ("NewModel", "new", False),
        ("T5EncoderModel", "t5", False),
        ("RoFormerForMaskedLM", "roformer", False),
        ("MT5Model", "mt5", False),
    ],
)
def test_architectures(tmp_path: Path, architecture: str, kind: str, decoder: bool) -> None:
    values = {"architectures": [architecture], "model_type": kind, "max_position_embeddings": 514}
    (tmp_path / "config.json").write_text(json.dumps(values))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 512}))
    found = read_encoding_config(tmp_path)
    assert (found.pooling == "last_token", found.padding_side == "left", found.add_eos) == (
        decoder,
    ) * 3
    assert found.max_length == 512
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 10**30}))
    (tmp_path / "config.json").write_text(json.dumps({**values, "max_position_embeddings": 131072}))
    assert read_encoding_config(tmp_path).max_length == MAX_LENGTH


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bert", "qwen2"])
@pytest.mark.parametrize(
    ("mode", "pooling"), [("cls", "cls"), ("mean", "mean"), ("lasttoken", "last_token")]
)
def test_sentence_transformers_folders_give_their_vectors(
    tiny: dict[str, Path], texts: list[str], tmp_path: Path, kind: str, mode: str, pooling: str
) -> None:
    from sentence_transformers import SentenceTransformer, models

    body = models.Transformer(str(tiny[kind]), max_seq_length=20)
    parts = [body, models.Pooling(body.get_embedding_dimension(), pooling_mode=mode)]
    if mode != "cls":
        parts.append(models.Normalize())
    prompts = {"query": "w7 w8 ", "document": "w9 "}
    similarity = "cosine" if mode != "cls" else "dot"
    peer = SentenceTransformer(
        modules=parts, device="cpu", prompts=prompts, similarity_fn_name=similarity
    )  # type: ignore[arg-type]
    peer.save(str(tmp_path))
    found = read_encoding_config(tmp_path)
    side = "left" if kind == "qwen2" else "right"
    assert found == EncodingConfig(pooling, mode != "cls", 20, "w7 w8 {text}", "w9 {text}", side)  # type: ignore[arg-type]
    ours = encoder.load(tmp_path, dtype="float32")
    for role, encode in (("query", peer.encode_query), ("passage", peer.encode_document)):
        np.testing.assert_allclose(ours.encode(texts, role), encode(texts), atol=1e-4, rtol=1e-4)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["cosine", None, "no file"])
def test_vectors_compared_by_cosine_are_normalised(
    tiny: dict[str, Path], tmp_path: Path, name: str | None
) -> None:
    from sentence_transformers import SentenceTransformer, models

    body = models.Transformer(str(tiny["bert"]))
    parts = [body, models.Pooling(body.get_embedding_dimension(), pooling_mode="mean")]
    SentenceTransformer(modules=parts, device="cpu").save(str(tmp_path))
    about = tmp_path / "config_sentence_transformers.json"
    values = json.loads(about.read_text())
    about.write_text(json.dumps(values | {"similarity_fn_name": name}))
    if name == "no file":
        about.unlink()
    peer = SentenceTransformer(str(tmp_path), device="cpu")
    texts = ["w1 w2 w3", "w4 w5"]
    ours_ND = encoder.load(tmp_path, dtype="float32", device="cpu").encode(texts, "passage")
    vectors_ND = peer.encode(texts)
    np.testing.assert_allclose(
        ours_ND @ ours_ND.T, peer.similarity(vectors_ND, vectors_ND), atol=1e-5
    )
    about.write_text(json.dumps(values | {"similarity_fn_name": "dot"}))
    assert not read_encoding_config(tmp_path).normalize
    about.write_text(json.dumps(values | {"similarity_fn_name": "manhattan"}))
    with pytest.raises(ModelError, match="compares vectors by manhattan; expected cosine or dot"):
        read_encoding_config(tmp_path)


def test_older_files_name_the_pooling_otherwise(minilm: Path, tmp_path: Path) -> None:
    def copy(name: str, modes: dict[str, bool]) -> Path:
        folder = tmp_path / name
        shutil.copytree(minilm, folder, ignore=shutil.ignore_patterns("*.safetensors"))
        (folder / "1_Pooling/config.json").write_text(
            json.dumps({f"pooling_mode_{k}": v for k, v in modes.items()})
        )
        return folder

    assert (
        read_encoding_config(copy("cls", {"cls_token": True, "mean_tokens": False})).pooling
        == "cls"
    )
    assert (
        read_encoding_config(copy("last", {"cls_token": False, "lasttoken": True})).pooling
        == "last_token"
    )
    with pytest.raises(ModelError, match="pools by max_tokens; expected"):
        read_encoding_config(copy("max", {"max_tokens": True}))
    with pytest.raises(ModelError, match="pools by cls_token, mean_tokens"):
        read_encoding_config(copy("both", {"cls_token": True, "mean_tokens": True}))


@pytest.mark.parametrize("others", [["CNN"], ["Dense", "Pooling"], ["Normalize", "Dense"]])
def test_layers_that_are_not_computed_are_refused(
    minilm: Path, tmp_path: Path, others: list[str]
) -> None:
    folder = tmp_path / "dense"
    shutil.copytree(minilm, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    modules = json.loads((folder / "modules.json").read_text())[:2]
    for name in others:
        modules.append(
            {"idx": 3, "name": "3", "path": "3_x", "type": f"sentence_transformers.models.{name}"}
        )
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(
        ModelError, match=rf"has the layers Transformer, Pooling, {', '.join(others)}; expected"
    ):
        read_encoding_config(folder)


def test_a_transformer_in_a_folder_beside_another_is_refused(minilm: Path, tmp_path: Path) -> None:
    """The layout of old versions of sentence-transformers, with a second model in the folder itself."""
    folder = shutil.copytree(
        minilm, tmp_path / "two", ignore=shutil.ignore_patterns("*.safetensors")
    )
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(
        ModelError, match=r"its transformer in 0_Transformer, beside the model in the folder itself"
    ):
        read_encoding_config(folder)


@pytest.mark.parametrize(("lower", "keeps"), [(True, True), (True, False), (False, True)])
def test_lower_casing_beside_the_tokenizer_is_refused(
    minilm: Path, tmp_path: Path, lower: bool, keeps: bool
) -> None:
    folder = tmp_path / "cased"
    shutil.copytree(minilm, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    (folder / "sentence_bert_config.json").write_text(
        json.dumps({"max_seq_length": 256, "do_lower_case": lower})
    )
    for name, at in (("tokenizer.json", "normalizer"), ("tokenizer_config.json", None)):
        about = json.loads((folder / name).read_text())
        (about[at] if at else about)["lowercase" if at else "do_lower_case"] = not keeps
        (folder / name).write_text(json.dumps(about))
    if lower and keeps:
        with pytest.raises(ModelError, match="do_lower_case, but the tokenizer keeps capitals"):
            encoder.load_tokenizer(folder, read_encoding_config(folder))
    else:
        found = encoder.load_tokenizer(folder, read_encoding_config(folder)).tokenize("Hello")
        assert ("hello" in found) == (not keeps)


def test_files_that_are_no_encoding_config_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config.json: missing"):
        read_encoding_config(tmp_path)
    for text, message in (
        ('{"pooling": "mean", "lenght": 3}', "lenght.*expected.*max_length"),
        ('{"normalize": true}', "expected"),
        ("[1, 2]", "expected"),
        ("{", "not JSON"),
    ):
        (tmp_path / ENCODING_CONFIG_FILE).write_text(text)
        with pytest.raises(ModelError, match=message):
            read_encoding_config(tmp_path)
    with pytest.raises(ModelError, match="query_template"):
        EncodingConfig("mean", query_template="no place")


def test_templates_are_filled_as_they_are() -> None:
    agreed = EncodingConfig("mean", query_template='Find {text} {"a": 1} for {task}', task="{text}")
    assert agreed.split_template("query") == ("Find ", ' {"a": 1} for {text}')
    assert agreed.split_template("passage") == ("", "")
