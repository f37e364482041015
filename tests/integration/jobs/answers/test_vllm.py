"""generate with vLLM: refused if it cannot work, else the same artifact as without; killed runs resume by shard.

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
import pyarrow.parquet as pq
import pytest
import torch
from shard_work import process_shard

from ratchet.data.tables import read_shards, write_shards
from ratchet.data.tasks.answers import COMPLETIONS
from ratchet.data.tasks.task import SAMPLES, read_task_name, write_task_name
from ratchet.errors import InputError, JobError, ModelError
from ratchet.jobs.answers import answering, generate, prepare_tasks
from ratchet.jobs.distributed import vllm_shards
from ratchet.jobs.synthetic import init_decoder, make_countdown
from ratchet.models.adapters import lora
from ratchet.models.decoder import decoder, sampling
from ratchet.orchestrator.job_interface import Context, Resources

MakeContext = Callable[..., Context]

GREEDY = generate.Config(max_new_tokens=24, dtype="float32")
VLLM = dataclasses.replace(GREEDY, engine="vllm")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """prepared/, base/ (heads of 32 dimensions, which vLLM has kernels for) and adapter/."""
    folder = tmp_path_factory.mktemp("countdown")

    def context(name: str) -> Context:
        (folder / name).mkdir()
        (folder / f"{name}-work").mkdir()
        return Context(
            name, "0" * 64, 1, folder / name, folder / f"{name}-work", Resources(1, 2.0, 0.0)
        )

    tasks = make_countdown.Config(tasks=120, sizes=(2,), largest=20)
    make_countdown.JOB.run(context("tasks"), tasks, make_countdown.Inputs())
    given = prepare_tasks.Inputs(folder / "tasks/tasks")
    prepare_tasks.JOB.run(
        context("prepared"), prepare_tasks.Config("countdown", shard_rows=5), given
    )
    config = init_decoder.Config(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=2, vocab_size=400
    )
    init_decoder.JOB.run(context("base"), config, init_decoder.Inputs(folder / "prepared/train"))
    opened = decoder.load(folder / "base", dtype="float32", device="cpu", training=True)
    with torch.no_grad():
        for name, parameter in opened.model.named_parameters():
            if "_proj" in name:
                parameter.mul_(12)  # a fresh model says its prompt's last token again and again
        # Where stops are looked for, transformers takes the spare tokens, which no trained model says, for others.
        opened.causal.get_input_embeddings().weight[len(opened.tokenizer) :] = 0
    opened.model.save_pretrained(str(folder / "base"))
    adapted = lora.attach(
        opened.model,
        lora_r=4,
        lora_alpha=64.0,
        lora_dropout=0.0,
        target_modules="all-linear",
        seed=0,
        task="CAUSAL_LM",
    )
    torch.manual_seed(0)
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    lora.save(adapted, folder / "adapter")
    return folder


def inputs(made: Path, adapter: bool = False) -> generate.Inputs:
    return generate.Inputs(
        made / "base", made / "prepared/test", made / "adapter" if adapter else None
    )


def answered(
    context: Context, config: generate.Config, given: generate.Inputs
) -> list[dict[str, Any]]:
    generate.check(config, given, {})
    generate.JOB.run(context, config, given)
    assert read_task_name(context.out) == "countdown"
    paths = sorted(context.out.glob("*.parquet"))
    assert [path.name for path in paths] == sorted(
        path.name for path in given.samples.glob("*.parquet")
    )
    assert all(pq.read_schema(path).equals(COMPLETIONS) for path in paths)
    return read_shards(context.out).to_pylist()


def by_transformers(
    config: generate.Config, given: generate.Inputs, folder: Path
) -> list[dict[str, Any]]:
    """The rows, without Ray."""
    folder.mkdir()
    worker = answering.Worker(config, given, 4096, "cpu")
    for path in sorted(given.samples.glob("*.parquet")):
        process_shard(worker, path, folder / path.name)
    return read_shards(folder).to_pylist()


def pretend(monkeypatch: pytest.MonkeyPatch, installed: bool) -> None:
    """That vLLM is, or is not, as far as plans can see."""
    usual = importlib.util.find_spec
    found = {"vllm": installed or None}
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *of: found.get(name, usual(name, *of))
    )


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, True)


@pytest.fixture
def engine(installed: None, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Transformers in vLLM's place; `asked`: shards by request, `until`: after how many requests it is killed."""
    state: dict[str, Any] = {"asked": [], "until": None}

    def answers(
        context: Context,
        model: Path,
        dtype: str,
        client: Any,
        pieces: list[dict[str, Any]],
        longest: int,
    ) -> Iterator[tuple[Path, int, np.ndarray, int]]:
        opened = decoder.load(model, dtype=dtype, device="cpu")
        rows = [row for piece in pieces for row in vllm_shards._read_requests(context.files, piece)]
        assert longest == max(
            len(row["tokenized_prompt"]) + row["sampling_params"]["max_tokens"] for row in rows
        )
        for row in reversed(rows):
            if len(state["asked"]) == state["until"]:
                raise KeyboardInterrupt
            state["asked"].append(Path(row["source"]).name)
            how = row["sampling_params"]
            kept = sampling.Sampling(
                temperature=0, max_new_tokens=how["max_tokens"], stop=tuple(how.get("stop", ()))
            )
            answer = np.array(sampling.generate(opened, [row["tokenized_prompt"]], [""], kept)[0])
            yield Path(row["source"]), row["number"], answer, len(answer)

    monkeypatch.setattr(vllm_shards, "_answers", answers)
    monkeypatch.setattr(vllm_shards, "REQUESTS_PER_BATCH", 2)
    return state


def test_where_vllm_is_not_installed_the_plan_says_so(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, False)
    with pytest.raises(
        InputError, match=r"generate\.engine: 'vllm' given, without vllm; expected the extra `vllm`"
    ):
        generate.check(VLLM, inputs(made), {})
    generate.check(GREEDY, inputs(made), {})


@pytest.mark.parametrize(
    ("change", "said"),
    [({"measure_latency": True}, "measure_latency: True"), ({"temperature": 0.001}, "least 0.01")],
)
def test_what_vllm_cannot_do_is_named(
    made: Path, installed: None, change: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        generate.check(dataclasses.replace(VLLM, **change), inputs(made), {})


def test_conversations_are_refused(
    made: Path, installed: None, tmp_path: Path, context: MakeContext
) -> None:
    row = {
        "id": "a",
        "group": "a",
        "system": "",
        "questions": ["1?", "2?"],
        "targets": ["1", "2"],
        "gold": "{}",
    }
    write_shards(tmp_path / "talks", [row], SAMPLES, 5)
    write_task_name(tmp_path / "talks", "squad-sequential")
    given = generate.Inputs(made / "base", tmp_path / "talks")
    with pytest.raises(
        InputError, match=r"conversations of up to 2 turns .*set engine=transformers"
    ):
        generate.check(VLLM, given, {})
    with pytest.raises(InputError, match="conversations of up to 2 turns"):
        generate.JOB.run(context(), VLLM, given)


def test_answers_beyond_positions_are_refused(
    made: Path, installed: None, context: MakeContext
) -> None:
    config = dataclasses.replace(VLLM, max_new_tokens=1020)
    with pytest.raises(ModelError, match=r"1024 positions; lower max_new_tokens"):
        generate.JOB.run(context(), config, inputs(made))
    with pytest.raises(ModelError, match=r"prompt of .*expected at most 3"):
        generate.JOB.run(context(), dataclasses.replace(VLLM, max_prompt_length=3), inputs(made))


@pytest.mark.parametrize("adapter", [False, True])
def test_the_artifact_is_the_same(
    made: Path, engine: dict[str, Any], tmp_path: Path, context: MakeContext, adapter: bool
) -> None:
    given = inputs(made, adapter)
    rows = answered(context(), VLLM, given)
    assert rows == by_transformers(GREEDY, given, tmp_path / "expected")
    assert len({row["answers"][0][0] for row in rows}) > 6


def test_a_killed_run_goes_on_by_shard(
    made: Path, engine: dict[str, Any], tmp_path: Path, context: MakeContext
) -> None:
    engine["until"] = 7
    with pytest.raises(KeyboardInterrupt):
        generate.JOB.run(context(1), VLLM, inputs(made))
    names = [path.name for path in sorted((made / "prepared/test").glob("*.parquet"))]
    assert len(names) == 3
    assert engine["asked"] == [names[2]] * 2 + [names[1]] * 5
    engine |= {"asked": [], "until": None}
    rows = answered(context(2), VLLM, inputs(made))
    assert engine["asked"] == [names[0]] * 5, "finished shards were asked again"
    assert rows == by_transformers(GREEDY, inputs(made), tmp_path / "expected")


def test_each_answer_has_a_seed_of_its_own(made: Path) -> None:
    config = dataclasses.replace(VLLM, num_completions=3, temperature=0.7, top_p=0.9, top_k=20)
    client = answering.ShardClient(config, inputs(made))
    shards = sorted((made / "prepared/test").glob("*.parquet"))
    requests = [request for shard in shards for request in client.requests(shard)]
    assert len({how["seed"] for _, how in requests}) == len(requests) == 36
    assert [how for _, how in client.requests(shards[0])] == [how for _, how in requests[:15]]
    other = answering.ShardClient(dataclasses.replace(config, seed=1), inputs(made)).requests(
        shards[0]
    )
    assert not {how["seed"] for _, how in other} & {how["seed"] for _, how in requests}
    ends = decoder.load_conversations(made / "base").ends
    assert (
        requests[0][1].items()
        >= {"temperature": 0.7, "top_p": 0.9, "top_k": 20, "max_tokens": 24}.items()
    )
    assert set(requests[0][1]["stop_token_ids"]) == ends


class TestVLLM:
    """On the CPU, where there is no GPU."""

    @pytest.fixture(autouse=True)
    def _needed(self, local_ray: None) -> None:
        pytest.importorskip("vllm")

    @pytest.mark.parametrize("adapter", [False, True])
    def test_the_likeliest_answers_are_those_of_transformers(
        self, made: Path, tmp_path: Path, context: MakeContext, adapter: bool
    ) -> None:
        given = inputs(made, adapter)
        rows = answered(context(), VLLM, given)
        assert rows == by_transformers(GREEDY, given, tmp_path / "expected")
        assert len({row["answers"][0][0] for row in rows}) > 6

    def test_samples_are_the_same_for_any_number_of_workers(
        self, made: Path, context: MakeContext
    ) -> None:
        config = dataclasses.replace(VLLM, num_completions=8, temperature=1.0, top_p=0.95, top_k=50)
        one, two = context(name="one"), context(name="two", workers=2, cpus=1.0)
        rows = answered(one, config, inputs(made))
        assert answered(two, config, inputs(made)) == rows
        assert len({answer for row in rows for (answer,) in row["answers"]}) > 48

    def test_an_answer_ends_where_its_stop_stands(
        self, made: Path, tmp_path: Path, context: MakeContext, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        given = inputs(made)
        free = [row["answers"][0][0] for row in by_transformers(GREEDY, given, tmp_path / "free")]
        stop = next(text[5:7] for text in free if len(text) > 10 and text[5:7].isascii())
        usual = answering._make_sampling
        monkeypatch.setattr(
            answering, "_make_sampling", lambda *of: dataclasses.replace(usual(*of), stop=(stop,))
        )
        rows = answered(context(), VLLM, given)
        assert rows == by_transformers(GREEDY, given, tmp_path / "held")
        assert [row["answers"][0][0] for row in rows] != free

    def test_an_engine_that_does_not_start_is_named(
        self, made: Path, tmp_path: Path, context: MakeContext
    ) -> None:
        shutil.copytree(made / "base", tmp_path / "odd")
        shape = json.loads((tmp_path / "odd/config.json").read_text())
        (tmp_path / "odd/config.json").write_text(json.dumps(shape | {"num_key_value_heads": 3}))
        with pytest.raises(
            JobError, match=r"vLLM's engine on .*/odd did not start.* or set engine=transformers"
        ):
            generate.JOB.run(
                context(), VLLM, generate.Inputs(tmp_path / "odd", made / "prepared/test")
            )
