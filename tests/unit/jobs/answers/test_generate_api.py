"""Questions are answered by a server that speaks OpenAI's API, with its own client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from embedder_finetuning import context
from language_server import LanguageServer, write_query

from ratchet.data.tables import read_shards, write_shards
from ratchet.data.tasks.query_generation import NAME
from ratchet.data.tasks.task import SAMPLES, Sample, sample_to_row, write_task_name
from ratchet.errors import InputError, ModelError
from ratchet.jobs.answers.generate_api import Config, Inputs, check, run
from ratchet.orchestrator.job_interface import Result

QUESTIONS = 12
PROMPT = "Document: The house of number {} stands beside water, trees and mountains\nQuery:"


@pytest.fixture
def server() -> Iterator[LanguageServer]:
    with LanguageServer() as started:
        yield started
        started.shutdown()


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    rows = []
    for number in range(QUESTIONS):
        turn = PROMPT.format(number), ""
        rows.append(sample_to_row(Sample(f"d{number}", "", "Be brief.", (turn,), {"document": ""})))
    write_shards(tmp_path / "samples", rows, SAMPLES, 5)
    write_task_name(tmp_path / "samples", NAME)
    return tmp_path / "samples"


def test_each_question_is_answered_in_order_and_counted(
    server: LanguageServer, samples: Path, tmp_path: Path
) -> None:
    """Also by a server that gives one completion per request."""
    for most in (8, 1):
        server.most = most
        server.asked.clear()
        config = Config(url=server.url, num_completions=3, temperature=0.7, price=(1.0, 2.0))
        made = context(tmp_path / str(most))
        result = run(made, config, Inputs(samples))
        rows = read_shards(made.out).to_pylist()
        assert [row["id"] for row in rows] == [f"d{number}" for number in range(QUESTIONS)]
        for number, row in enumerate(rows):
            expected = [[write_query(PROMPT.format(number), n)] for n in range(3)]
            assert row["answers"] == expected
            assert row["truncated"] == [[False]] * 3
        requests = QUESTIONS * (1 if most == 8 else 3)
        assert len(server.asked) == requests
        tokens = {"prompt_tokens": 10 * requests, "tokens": 6 * QUESTIONS}
        cost = (tokens["prompt_tokens"] + 2 * tokens["tokens"]) / 1e6
        assert result.metrics == {"samples": QUESTIONS, **tokens, "cost": cost}
        request = server.asked[0]
        assert request["messages"][0] == {"role": "system", "content": "Be brief."}
        assert (request["model"], request["temperature"]) == ("people", 0.7)


def test_a_busy_server_is_asked_again_and_answers_are_not_asked_for_twice(
    server: LanguageServer, samples: Path, tmp_path: Path
) -> None:
    server.refuse = {2: 429, 4: 503}
    config = Config(url=server.url, concurrency=1)
    first = run(context(tmp_path / "one"), config, Inputs(samples))
    assert first.metrics["samples"] == QUESTIONS
    assert len(server.asked) == QUESTIONS + 2

    server.asked.clear()
    server.refuse = {8: 400}
    made = context(tmp_path / "two")
    with pytest.raises(ModelError, match=r"not now.*; expected an OpenAI-compatible API; start it"):
        run(made, config, Inputs(samples))
    server.refuse = {}
    asked = len(server.asked)
    run(made, config, Inputs(samples))
    assert len(server.asked) - 1 == QUESTIONS, f"{asked} before, one of them refused"
    assert len(read_shards(made.out)) == QUESTIONS


def test_the_plan_foresees_requests_tokens_and_cost(server: LanguageServer, samples: Path) -> None:
    config = Config(url=server.url, num_completions=2, temperature=1.0, max_new_tokens=50)
    parents = {"samples": Result({"prompts": 1000, "prompt_characters": 800})}
    note = "about 1,000 requests: 200,000 tokens, and at most 100,000 tokens in answers"
    assert check(config, Inputs(samples), parents).note == note
    priced = Config(url=server.url, max_new_tokens=50, price=(2.5, 10.0))
    assert check(priced, Inputs(samples), parents).note.endswith("answers, at most 1.00")


def test_the_key_is_sent_and_kept_from_others(
    server: LanguageServer, samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "a key")
    run(context(tmp_path), Config(url=server.url), Inputs(samples))
    assert server.keys == {"Bearer a key"}
    for values, said in (
        ({"url": "http://example.com/v1"}, "expected https"),
        ({"url": server.url, "key_variable": "AWS_SECRET"}, "a name that ends with _API_KEY"),
        ({"url": "localhost:8000"}, "expected an address such as"),
        ({"url": server.url, "num_completions": 2}, "expected 1 at temperature 0"),
    ):
        with pytest.raises(InputError, match=said):
            check(Config(**values), Inputs(samples), {})  # type: ignore[arg-type]


def test_a_server_that_is_not_there_is_named(samples: Path, tmp_path: Path) -> None:
    config = Config(url="http://127.0.0.1:1/v1", model="any")
    with pytest.raises(ModelError, match=r"127\.0\.0\.1:1/v1: .*; expected an OpenAI-compatible"):
        run(context(tmp_path), config, Inputs(samples))
