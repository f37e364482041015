"""embed and rerank with vLLM: refused if it cannot work, else the same artifacts; killed runs resume by shard.

Tests of the engine itself run only if vLLM is installed. Tests of the requests to the engine and of the handling of its
answers run everywhere: transformers answers the requests.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import transformers
from tiny_models import save_chat_model
from torch.nn import functional

from ratchet.data.tables import CORPUS, MINED, RANKED, open_mapped, read_shards, write_shards
from ratchet.errors import InputError
from ratchet.jobs.distributed import vllm_shards
from ratchet.jobs.retrieval import embed, rerank
from ratchet.jobs.retrieval.implementation import embed as embed_work
from ratchet.jobs.retrieval.implementation import rerank as rerank_work
from ratchet.models.adapters import lora
from ratchet.models.embedder.encoding_config import EncodingConfig
from ratchet.models.model_files import MINILM, resolve
from ratchet.models.reranker.reranker_config import YES_NO, RerankerConfig
from ratchet.models.vllm import make_engine_args
from ratchet.orchestrator.job_interface import Context, Resources

MakeContext = Callable[..., Context]

WORDS = ["one", "two", "three", "Yes", "No", "passage", "query", "adds", "the", "numerators", "and", "denominators"]
TEXTS = [" ".join(WORDS[(i * k + k) % len(WORDS)] for k in range(i % 9)) for i in range(14)]
LAST = EncodingConfig("last_token", max_length=24, query_template="Find {text}!", padding_side="left", add_eos=True)
ENCODING = {"last": LAST, "mean": EncodingConfig("mean", normalize=False, max_length=16), "cls": EncodingConfig("cls")}
ANSWERS = {"one": dataclasses.replace(YES_NO, prompt="?", answer="Y"), "two": dataclasses.replace(YES_NO, against="N")}
ANSWERS["two"] = dataclasses.replace(ANSWERS["two"], prompt="?", answer="Y", max_length=48)
EMBED = embed.Config(role="query", dtype="float32")
RERANK = rerank.Config(dtype="float32", depth=3)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """corpus/, mined/, ranked/; a folder of a model per encoding and reranker config, and an adapter of each kind."""
    folder = tmp_path_factory.mktemp("made")
    documents = [{"id": f"d{number}", "text": text} for number, text in enumerate(TEXTS)]
    write_shards(folder / "corpus", documents, CORPUS, 5)
    mined = [
        {
            "id": f"q{q}",
            "text": f"query {TEXTS[q]}",
            "positives": [f"d{q}"],
            "negatives": [f"d{(q + n + 1) % 14}" for n in range(q % 4)],
            "positive_scores": [1.0],
            "negative_scores": [0.5] * (q % 4),
        }
        for q in range(8)
    ]
    write_shards(folder / "mined", mined, MINED, 3)
    kept = ("id", "text", "positives")
    ranked = [
        {**{name: row[name] for name in kept}, "documents": [f"d{n}" for n in range(5)], "scores": [1.0] * 5}
        for row in mined
    ]
    write_shards(folder / "ranked", ranked, RANKED, 3)
    save_chat_model(folder / "base", TEXTS, hidden_size=64)
    kinds = {"causal": transformers.AutoModelForCausalLM, "plain": transformers.AutoModel}
    model = kinds["causal"].from_pretrained(folder / "base")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "_proj" in name:
                parameter.mul_(12)  # in a fresh model attention hardly matters
    model.save_pretrained(folder / "base")
    configs: dict[str, EncodingConfig | RerankerConfig] = {**ENCODING, **ANSWERS}
    for name, config in configs.items():
        shutil.copytree(folder / "base", folder / name)
        config.write(folder / name)
    options = {"lora_r": 4, "lora_alpha": 64.0, "lora_dropout": 0.0, "target_modules": "all-linear", "seed": 0}
    for name, task in (("causal", "CAUSAL_LM"), ("plain", "FEATURE_EXTRACTION")):
        adapted = lora.attach(kinds[name].from_pretrained(folder / "base"), **options, task=task)  # type: ignore[arg-type]
        torch.manual_seed(0)
        for parameter in (one for key, one in adapted.named_parameters() if "lora_B" in key):
            torch.nn.init.normal_(parameter, std=0.1)
        lora.save(adapted, folder / name)
    LAST.write(folder / "plain")
    ANSWERS["two"].write(folder / "causal")
    return folder


def embed_inputs(made: Path, model: str, adapter: bool = False) -> embed.Inputs:
    return embed.Inputs(made / model, made / "corpus", made / "plain" if adapter else None)


def rerank_inputs(made: Path, model: str, lists: str = "mined", adapter: bool = False) -> rerank.Inputs:
    return rerank.Inputs(made / model, made / lists, made / "corpus", made / "causal" if adapter else None)


def by_transformers(config: Any, given: Any, folder: Path) -> list[dict[str, Any]]:
    """The rows, without Ray."""
    worker: Any
    suffix = "arrow" if isinstance(given, embed.Inputs) else "parquet"
    if isinstance(given, embed.Inputs):
        worker, source = embed_work.Worker(given, config, 4096, "cpu"), given.texts
    else:
        worker = rerank_work.Worker(given, config, 4096, "cpu")
        source = given.lists
    folder.mkdir()
    for path in sorted(source.glob("*.parquet")):
        worker(path, folder / f"{path.stem}.{suffix}", lambda rows, tokens=0: None)
    return read_output(folder).to_pylist()


def read_output(folder: Path) -> pa.Table:
    return open_mapped(folder) if list(folder.glob("*.arrow")) else read_shards(folder)


def check_same(context: Context, config: Any, given: Any, tmp_path: Path) -> list[dict[str, Any]]:
    """Run the job with vLLM, compare its output with that of transformers, and return it."""
    job = embed if isinstance(given, embed.Inputs) else rerank
    asked = dataclasses.replace(config, engine="vllm")
    job.check(asked, given)
    result = job.JOB.load()(context, asked, given)
    rows, expected = read_output(context.out).to_pylist(), by_transformers(config, given, tmp_path / "expected")
    assert read_output(tmp_path / "expected").schema.equals(read_output(context.out).schema)
    assert len(rows) == len(expected)
    for row, wanted in zip(rows, expected, strict=True):
        assert row.keys() == wanted.keys()
        for name, value in wanted.items():
            if name == "embedding" or name.startswith("teacher"):
                np.testing.assert_allclose(row[name], value, rtol=1e-4, atol=1e-4)
            else:
                assert row[name] == value
    assert result.metrics["tokens"] > 0
    return rows


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as plans can see."""
    usual = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *of: name == "vllm" or usual(name, *of))


@pytest.fixture
def engine(installed: None, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Transformers in vLLM's place; `asked`: shards by request, `until`: after how many requests it is killed."""
    state: dict[str, Any] = {"asked": [], "until": None}

    @torch.no_grad()
    def answer(model: Any, tokenizer: Any, args: dict[str, Any], ids: np.ndarray, how: dict[str, Any]) -> np.ndarray:
        states = model.base_model(input_ids=torch.from_numpy(ids)[None].long()).last_hidden_state[0]
        pooled = {"LAST": states[-1], "CLS": states[0], "MEAN": states.mean(0)}
        found = pooled[args["pooler_config"]["seq_pooling_type"]]
        if tokens := args.get("hf_overrides", {}).get("classifier_from_token"):
            rows = model.get_output_embeddings().weight[tokenizer.convert_tokens_to_ids(tokens)]
            two = args["hf_overrides"]["method"] == "from_2_way_softmax"
            found = (rows[1:] - rows[:1] if two else rows) @ found
            assert not how["use_activation"]
        elif how["use_activation"]:
            found = functional.normalize(found, dim=-1)
        return found.numpy()

    def answers(
        context: Context, model: Path, dtype: str, client: Any, pieces: list[dict[str, Any]], longest: int
    ) -> Iterator[tuple[Path, int, np.ndarray, int]]:
        opened = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=dtype)
        tokenizer = transformers.AutoTokenizer.from_pretrained(model)
        rows = [row for piece in pieces for row in vllm_shards._read_requests(client.task, piece)]
        assert longest == max(len(row["tokenized_prompt"]) for row in rows)
        for row in reversed(rows):
            if len(state["asked"]) == state["until"]:
                raise KeyboardInterrupt
            state["asked"].append(Path(row["source"]).name)
            ids = np.array(row["tokenized_prompt"])
            found = answer(opened, tokenizer, client.engine_args, ids, row["pooling_params"])
            yield Path(row["source"]), row["number"], found, len(ids)

    monkeypatch.setattr(vllm_shards, "_answers", answers)
    monkeypatch.setattr(vllm_shards, "REQUESTS_PER_BATCH", 2)
    return state


@pytest.mark.parametrize(
    ("config", "model", "said"),
    [
        (EMBED, "last", r"embed\.engine: 'vllm' given, without vllm; expected the extra `vllm`"),
        (RERANK, "two", r"rerank\.engine: 'vllm' given, without vllm; expected the extra `vllm`"),
    ],
)
def test_where_vllm_is_not_installed_the_plan_says_so(
    made: Path, monkeypatch: pytest.MonkeyPatch, config: Any, model: str, said: str
) -> None:
    usual = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *of: None if name == "vllm" else usual(name, *of))
    job, given = (embed, embed_inputs(made, model)) if config is EMBED else (rerank, rerank_inputs(made, model))
    with pytest.raises(InputError, match=said):
        job.check(dataclasses.replace(config, engine="vllm"), given)  # type: ignore[arg-type]
    job.check(config, given)  # type: ignore[arg-type]


def test_what_vllm_cannot_do_is_refused(made: Path, installed: None, tmp_path: Path, context: MakeContext) -> None:
    by_vllm = dataclasses.replace(EMBED, engine="vllm")
    with pytest.raises(InputError, match="quantization: nf4 given; expected none"):
        embed.check(dataclasses.replace(by_vllm, quantization="nf4"), embed_inputs(made, "last"))
    shutil.copytree(made / "last", tmp_path / "narrow")
    dataclasses.replace(LAST, projection="2_Dense").write(tmp_path / "narrow")
    narrow = embed.Inputs(tmp_path / "narrow", made / "corpus")
    with pytest.raises(InputError, match=r"an embedder with a projection .*set engine=transformers"):
        embed.check(by_vllm, narrow)
    with pytest.raises(InputError, match="an embedder with a projection"):
        embed.JOB.load()(context(), by_vllm, narrow)
    scored = dataclasses.replace(RERANK, engine="vllm")
    cross = rerank.Inputs(resolve(MINILM), made / "mined", made / "corpus")
    with pytest.raises(InputError, match="of kind cross_encoder and architecture bert; expected yes_no and one of"):
        rerank.check(scored, cross)
    shutil.copytree(made / "two", tmp_path / "capped")
    shape = json.loads((tmp_path / "capped/config.json").read_text())
    (tmp_path / "capped/config.json").write_text(json.dumps(shape | {"model_type": "olmo2"}))
    with pytest.raises(InputError, match="architecture olmo2; expected yes_no"):
        rerank.check(scored, rerank.Inputs(tmp_path / "capped", made / "mined", made / "corpus"))


def test_the_gpus_of_an_engine_divide_the_heads(made: Path) -> None:
    def needs(job: Any, config: Any, given: Any, gpus: float) -> None:
        asked = dataclasses.replace(config, engine="vllm")
        assert job.estimate_needs(asked, given, Resources(workers=1, cpus=1.0, gpus=gpus), {}) is None

    needs(embed, EMBED, embed_inputs(made, "last"), 2.0)
    for gpus in (3.0, 4.0):
        with pytest.raises(InputError, match=f"gpus: {gpus:g} per worker .* a divisor of the model's 2 atten"):
            needs(embed, EMBED, embed_inputs(made, "last"), gpus)
    with pytest.raises(InputError, match=r"gpus: 1\.5 per worker given; .* a whole number"):
        needs(embed, EMBED, embed_inputs(made, "last"), 1.5)
    needs(rerank, RERANK, rerank_inputs(made, "two"), 1.0)
    with pytest.raises(InputError, match="gpus: 2 per worker given; expected at most 1 with engine 'vllm'"):
        needs(rerank, RERANK, rerank_inputs(made, "two"), 2.0)


def test_an_engine_on_several_gpus_is_asked_for_tensor_parallelism(made: Path) -> None:
    one, two = (make_engine_args(made / "last", dtype="float32", longest=64, gpus=gpus) for gpus in (1.0, 2.0))
    assert "tensor_parallel_size" not in one
    assert two == one | {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}


@pytest.mark.parametrize(("model", "adapter"), [("last", False), ("last", True), ("mean", False), ("cls", False)])
def test_vectors_are_the_same(
    made: Path, engine: dict[str, Any], tmp_path: Path, context: MakeContext, model: str, adapter: bool
) -> None:
    check_same(context(), EMBED, embed_inputs(made, model, adapter), tmp_path)


@pytest.mark.parametrize("adapter", [False, True])
@pytest.mark.parametrize(("model", "lists"), [("one", "mined"), ("two", "mined"), ("two", "ranked")])
def test_scores_are_the_same(
    made: Path, engine: dict[str, Any], tmp_path: Path, context: MakeContext, model: str, lists: str, adapter: bool
) -> None:
    rows = check_same(context(), RERANK, rerank_inputs(made, model, lists, adapter), tmp_path)
    (name,) = (name for name in rows[0] if name in ("teacher_scores", "teacher_negative_scores"))
    assert len({score for row in rows for score in row[name]}) > 5
    assert max(len(row[name]) for row in rows) == 3


def test_a_killed_run_goes_on_by_shard(
    made: Path, engine: dict[str, Any], tmp_path: Path, context: MakeContext
) -> None:
    by_vllm, given = dataclasses.replace(RERANK, engine="vllm"), rerank_inputs(made, "two")
    shards = sorted((made / "mined").glob("*.parquet"))
    pairs = [sum(1 + len(row) for row in pq.read_table(path)["negatives"].to_pylist()) for path in shards]
    assert len(set(pairs)) > 1, "shards of equal length would tell nothing of rows with different numbers of pairs"
    engine["until"] = pairs[2] + pairs[1] + 1
    with pytest.raises(KeyboardInterrupt):
        rerank.JOB.load()(context(1), by_vllm, given)
    engine |= {"asked": [], "until": None}
    second = context(2)
    check_same(second, RERANK, given, tmp_path)
    assert engine["asked"] == [shards[0].name] * pairs[0], "finished shards were asked again"


class TestVLLM:
    """On the CPU, where there is no GPU."""

    @pytest.fixture(autouse=True)
    def _needed(self, local_ray: None) -> None:
        pytest.importorskip("vllm")

    @pytest.mark.parametrize(("model", "adapter"), [("last", False), ("last", True), ("mean", False), ("cls", False)])
    def test_vectors_are_those_of_transformers(
        self, made: Path, tmp_path: Path, context: MakeContext, model: str, adapter: bool
    ) -> None:
        check_same(context(), EMBED, embed_inputs(made, model, adapter), tmp_path)

    def test_vectors_of_an_encoder_are_those_of_transformers(
        self, made: Path, tmp_path: Path, context: MakeContext
    ) -> None:
        check_same(context(), EMBED, embed.Inputs(resolve(MINILM), made / "corpus"), tmp_path)

    @pytest.mark.parametrize(("model", "adapter"), [("one", False), ("two", False), ("two", True)])
    def test_scores_are_those_of_transformers(
        self, made: Path, tmp_path: Path, context: MakeContext, model: str, adapter: bool
    ) -> None:
        check_same(context(), RERANK, rerank_inputs(made, model, adapter=adapter), tmp_path)
