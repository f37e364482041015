"""Synthetic queries: prompts, cleaning of answers, and the filter, on answers written by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ratchet.data.tables import CORPUS, QUERIES, RANKED, add_carried, read_shards, write_shards
from ratchet.data.tasks import get_task, query_generation, read_samples
from ratchet.data.tasks.answers import COMPLETIONS
from ratchet.data.tasks.task import write_task_name
from ratchet.errors import ArtifactError, InputError, ModelError
from ratchet.jobs.answers.chat_options import read_chat
from ratchet.jobs.synthetic import (
    clean_queries,
    filter_queries,
    prepare_judgement,
    prepare_query_generation,
)
from ratchet.orchestrator.job_interface import Context, Result

MakeContext = Callable[..., Context]

TEXTS = {
    "a": "Rome is the capital of Italy.",
    "b": "Goethe wrote {query}.",
    "c": "Bread\nis baked.",
    "d": "Snow.",
}
TRAIN = [
    {
        "id": "q0",
        "text": "Which city\nis it?",
        "positives": ["a"],
        "grades": [2],
        "negatives": ["b"],
    },
    {"id": "q1", "text": "Who wrote Faust?", "positives": ["b"], "grades": [1], "negatives": []},
]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Documents a to d, of which a and b have a training query."""
    write_shards(
        tmp_path / "corpus", [{"id": name, "text": text} for name, text in TEXTS.items()], CORPUS, 3
    )
    write_shards(tmp_path / "train", TRAIN, QUERIES, 1)
    return tmp_path


def prepare(context: Context, data: Path, **config: Any) -> tuple[Result, dict[str, str]]:
    """Return the result, and document -> prompt."""
    given = prepare_query_generation.Config(**config)
    inputs = prepare_query_generation.Inputs(data / "corpus", data / "train")
    predicted = prepare_query_generation.check(given, inputs, {})
    result = prepare_query_generation.JOB.run(context, given, inputs)
    assert predicted.metrics.items() <= result.metrics.items()
    rows = read_shards(context.out, ["id", "questions"]).to_pylist()
    return result, {row["id"]: row["questions"][0] for row in rows}


def test_documents_without_a_training_query_are_asked_about(
    context: MakeContext, data: Path
) -> None:
    result, prompts = prepare(context(), data, num_examples=0)
    assert list(prompts) == ["c", "d"]
    assert prompts["c"].endswith("\n\nDocument: Bread\nis baked.\nQuery:")
    assert [result.metrics[name] for name in ("documents", "unlabelled", "prompts")] == [4, 2, 2]
    result, prompts = prepare(context(), data, num_examples=0, documents="all")
    assert list(prompts) == list(TEXTS)
    for seed in range(3):
        _, some = prepare(
            context(), data, num_examples=0, documents="all", max_documents=2, seed=seed
        )
        assert len(some) == 2
        assert some.items() <= prompts.items()


def test_examples_of_generation_prompts(context: MakeContext, data: Path) -> None:
    _, prompts = prepare(context(), data, num_examples=5, documents="all")
    first, second = (
        f"Document: {TEXTS['a']}\nQuery: Which city is it?\n\n",
        f"Document: {TEXTS['b']}\nQuery: Who wrote",
    )
    for name in "cd":
        assert first in prompts[name], "on one line"
        assert second in prompts[name], "braces of a text are no placeholders"
    assert "Which city" not in prompts["a"]
    assert second in prompts["a"]
    assert "Who wrote" not in prompts["b"]
    shown = {prepare(context(), data, num_examples=1, seed=seed)[1]["d"] for seed in range(8)}
    assert len(shown) == 2, "one of two pairs, drawn with the seed"


def test_a_query_of_several_documents_is_shown_to_none_of_them(
    context: MakeContext, data: Path
) -> None:
    """Also where it stands twice, with another document each time."""
    both, again = TRAIN[0] | {"positives": ["a", "b"]}, TRAIN[0] | {"id": "q2", "positives": ["c"]}
    write_shards(data / "train", [both, again], QUERIES, 1)
    _, prompts = prepare(context(), data, num_examples=5, documents="all")
    assert ["Which city" in prompts[name] for name in "abcd"] == [False, False, False, True]


def test_prompts_do_not_depend_on_each_other(context: MakeContext, data: Path) -> None:
    """Unless the new query is one of the examples."""
    _, before = prepare(context(), data, num_examples=1, max_documents=1)
    texts = TEXTS | {f"new {n}": f"Text {n}." for n in range(5)}
    write_shards(
        data / "corpus", [{"id": name, "text": text} for name, text in texts.items()], CORPUS, 5
    )
    same = 0
    for number in range(9):
        query = {**TRAIN[0], "id": f"new {number}", "text": "New?"}
        write_shards(data / "train", [query, *TRAIN], QUERIES, 2)
        _, after = prepare(context(), data, num_examples=1)
        assert len(after) == 7
        same += before.items() <= after.items()
    assert 3 <= same < 9


def test_a_prompt_is_the_users_template(context: MakeContext, data: Path) -> None:
    made = context()
    template = {"prompt_template": "{examples}Text: {document}\\nAsk!", "max_characters": 4}
    _, prompts = prepare(
        made, data, num_examples=0, stop=("\\n",), chat_template_kwargs=("think=false",), **template
    )
    assert prompts["c"] == "Text: Brea\nAsk!"
    assert read_chat(made.out) == ({"think": False}, ("\n",))


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            {"prompt_template": "Ask. {examples}"},
            r"prepare_query_generation\.prompt_template: .*no {document} in it",
        ),
        (
            {"prompt_template": "{document}"},
            r"no {examples} in it; expected {document}, {examples}",
        ),
        (
            {"prompt_template": "{text}", "num_examples": 0},
            r"unknown placeholder {text}; expected {document}, {exam",
        ),
        (
            {"chat_template_kwargs": ("think",)},
            r"prepare_query_generation\.chat_template_kwargs: 'think' given",
        ),
    ],
)
def test_templates_are_checked_at_plan_time(config: dict[str, Any], said: str) -> None:
    none: Any = None
    given = prepare_query_generation.Config(**config)
    with pytest.raises((InputError, ModelError), match=said):
        prepare_query_generation.check(given, prepare_query_generation.Inputs(none, none), {})


def test_a_corpus_whose_documents_all_have_queries_is_an_error(
    context: MakeContext, data: Path
) -> None:
    rows = [{"id": "q", "text": "q", "positives": list(TEXTS), "grades": [1] * 4, "negatives": []}]
    write_shards(data / "train", rows, QUERIES, 9)
    (data / "train/shard-00001.parquet").unlink()
    with pytest.raises(InputError, match=r"all 4 documents have a training query; .*documents=all"):
        prepare(context(), data)


def test_questions_of_two_chunks_are_of_one_document(context: MakeContext, tmp_path: Path) -> None:
    texts = {f"{name}#{n}": f"{name} {n}" for name in ("a.md", "b.md") for n in range(4)}
    texts["alone.md#0"] = "alone"
    rows = [{"id": name, "text": text} for name, text in texts.items()]
    write_shards(tmp_path / "corpus", rows, CORPUS, 3)
    config = prepare_query_generation.Config(documents="all", num_examples=0, multi_hop=0.5)
    made = context()
    inputs = prepare_query_generation.Inputs(tmp_path / "corpus")
    parents = {"corpus": Result({"documents": 9})}
    known = prepare_query_generation.check(config, inputs, parents).metrics["prompts"]
    result = prepare_query_generation.JOB.run(made, config, inputs)
    assert result.metrics["prompts"] == known == 9 + 4
    for row in read_shards(made.out).to_pylist()[9:]:
        one, other = json.loads(row["gold"])["positives"]
        assert one != other
        assert one.partition("#")[0] == other.partition("#")[0]
        prompt = row["questions"][0]
        assert f"Document: {texts[one]}\n\nDocument: {texts[other]}\nQuestion:" in prompt


@pytest.mark.parametrize(
    ("answer", "query", "label"),
    [
        (' "Who bakes  bread?"\nIt is asked often.', "Who bakes bread?", "correct"),
        ("\n\nQuery: bread ", "bread", "correct"),
        ("**Query: how is bread made**", "how is bread made", "correct"),
        ("面包怎么做", "面包怎么做", "correct"),
        ("bread IS baked.", "bread IS baked.", "copy"),
        ("", "", "empty"),
        ("Query:\nbread", "", "empty"),
        (" ... ?!\n", "", "empty"),
    ],
)
def test_answers_are_cleaned(answer: str, query: str, label: str) -> None:
    assert query_generation.clean_query(answer) == query
    assert [one.label for one in query_generation.verify({"document": TEXTS["c"]}, [answer])] == [
        label
    ]


def test_pairs_train_a_generator(tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text(json.dumps({"document": TEXTS["c"], "query": "how is\nbread made"}) + "\n")
    (sample,) = read_samples(get_task("query-generation"), file)
    assert sample.turns == (
        (query_generation.make_prompt(query_generation.PROMPT, TEXTS["c"]), "how is bread made"),
    )


def clean(
    context: Context, data: Path, answers: dict[str, list[str]], train: str = "train"
) -> Result:
    """Clean answers, given by document."""
    rows = [
        {
            "id": name,
            "gold": json.dumps({"document": TEXTS[name], "positives": [name]}),
            "answers": [[answer] for answer in own],
        }
        for name, own in answers.items()
    ]
    write_shards(data / "completions", rows, COMPLETIONS, 1)
    write_task_name(data / "completions", "query-generation")
    inputs = clean_queries.Inputs(data / "completions", data / train)
    return clean_queries.JOB.run(context, clean_queries.Config(), inputs)


def test_repeated_and_unusable_answers_are_left_out(context: MakeContext, data: Path) -> None:
    made = context()
    answers = {
        "c": ["how?", "How", "", "Bread is baked.", "faust, who wrote", "baking", "which one?"],
        "d": ["Which one", "snow!\nand ice", "..."],
    }
    result = clean(made, data, answers)
    counts = {"completions": 10, "empty": 2, "copies": 1, "duplicates": 2, "ambiguous": 2}
    assert result.metrics == {**counts, "queries": 3}
    rows = read_shards(made.out).to_pylist()
    assert [(row["id"], row["text"], row["positives"]) for row in rows] == [
        ("synthetic/c/0", "how?", ["c"]),
        ("synthetic/c/5", "baking", ["c"]),
        ("synthetic/d/1", "snow!", ["d"]),
    ]


def test_queries_of_several_chunks_have_them_all(context: MakeContext, tmp_path: Path) -> None:
    """Those of a question that needs two, and those whose queries have nearly the same words."""
    answers = {
        ("a.md#0",): ["When was the very big house built by them?"],
        ("a.md#1",): ["when was the very big house built", "Who lived there?"],
        ("a.md#1", "a.md#2"): ["Did those who lived there build it?"],
        ("b.md#0",): ["When was the house built?"],
    }
    rows = []
    for names, own in answers.items():
        gold = json.dumps({"document": "text", "positives": names})
        given = [[answer] for answer in own]
        rows.append({"id": "+".join(names), "gold": gold, "answers": given})
    write_shards(tmp_path / "completions", rows, COMPLETIONS, 1)
    write_task_name(tmp_path / "completions", "query-generation")
    for least, first in ((0.7, ["a.md#0", "a.md#1"]), (1.0, ["a.md#0"])):
        made = context()
        config = clean_queries.Config(near_duplicate=least)
        clean_queries.JOB.run(made, config, clean_queries.Inputs(tmp_path / "completions"))
        found = read_shards(made.out).to_pylist()
        assert found[0]["positives"] == first
        assert found[0]["grades"] == [1] * len(first)
        assert found[-2]["positives"] == ["a.md#1", "a.md#2"]
        assert [row["group"] for row in found] == ["a.md"] * (len(found) - 1) + ["b.md"]


def test_queries_get_the_most_frequent_instruction(context: MakeContext, data: Path) -> None:
    rows = [
        {**TRAIN[0], "id": str(i), "task": task}
        for i, task in enumerate(["Find it.", "Ask.", "Find it."])
    ]
    write_shards(data / "instructed", rows, add_carried(QUERIES, ["task"]), 9)
    made = context()
    clean(made, data, {"c": ["bread"]}, "instructed")
    assert read_shards(made.out).to_pylist()[0]["task"] == "Find it."


def test_without_a_usable_answer_the_step_fails_with_counts(
    context: MakeContext, data: Path
) -> None:
    with pytest.raises(
        ArtifactError,
        match=r"no query is left \(completions 2, empty 1, copies 1, .*; expected at l",
    ):
        clean(context(), data, {"c": ["", "Bread is baked."]})


def test_answers_of_another_task_are_refused(context: MakeContext, data: Path) -> None:
    write_shards(data / "completions", [], COMPLETIONS, 1)
    write_task_name(data / "completions", "gsm8k")
    inputs = clean_queries.Inputs(data / "completions", data / "train")
    with pytest.raises(InputError, match="answers of task gsm8k given; expected query-generation"):
        clean_queries.JOB.run(context(), clean_queries.Config(), inputs)


class Search:
    """Cleaned queries on a corpus of 20 documents, 3 for each, with rankings by random vectors, sorted one by one."""

    def __init__(self, folder: Path) -> None:
        random = np.random.default_rng(0)
        self.folder = folder
        corpus_ND = random.normal(size=(20, 4))
        self.own_Q = np.repeat(np.arange(20), 3)
        query_QD = corpus_ND[self.own_Q] + random.normal(size=(60, 4))
        self.texts = [f"query {q}" for q in range(60)]
        rows = [
            {
                "id": f"synthetic/{own}/{q}",
                "text": text,
                "positives": [str(own)],
                "grades": [1],
                "negatives": [],
            }
            for q, (own, text) in enumerate(zip(self.own_Q, self.texts, strict=True))
        ]
        write_shards(
            folder / "corpus", [{"id": str(n), "text": f"text {n}"} for n in range(20)], CORPUS, 9
        )
        write_shards(folder / "queries", rows, QUERIES, 25)
        self.ranks = self._rank(query_QD @ corpus_ND.T, rows, "ranking")
        self.reranks = self._rank(
            (query_QD + random.normal(size=(60, 4)) / 3) @ corpus_ND.T, rows, "reranked"
        )

    def _rank(self, scores_QN: np.ndarray, rows: Sequence[dict[str, Any]], name: str) -> list[int]:
        orders = [sorted(range(20), key=lambda n, own=own: -own[n]) for own in scores_QN]  # type: ignore[misc]
        ranks = [order.index(own) + 1 for order, own in zip(orders, self.own_Q, strict=True)]
        ranked = [
            {**row, "documents": [str(n) for n in order[:5]], "scores": [0.0] * 5, "ranks": [rank]}
            for row, order, rank in zip(rows, orders, ranks, strict=True)
        ]
        write_shards(self.folder / name, ranked, RANKED, 25)
        return ranks


@pytest.mark.parametrize(
    ("rank", "reranker_rank"), [(1, None), (3, None), (20, None), (3, 1), (20, 2)]
)
def test_queries_are_kept_that_find_their_document(
    context: MakeContext, data: Path, rank: int, reranker_rank: int | None
) -> None:
    search = Search(data / "search")
    made = context()
    config = filter_queries.Config(round_trip_rank=rank, reranker_rank=reranker_rank or 1)
    reranked = search.folder / "reranked" if reranker_rank else None
    inputs = filter_queries.Inputs(
        search.folder / "queries", data / "train", search.folder / "ranking", reranked
    )
    result = filter_queries.JOB.run(made, config, inputs)

    found = {q for q in range(60) if search.ranks[q] <= rank}
    kept = {q for q in found if reranker_rank is None or search.reranks[q] <= reranker_rank}
    assert len(kept) > 0
    rows = read_shards(made.out).to_pylist()
    assert rows[:2] == TRAIN, "real queries first, as they are"
    assert [row["text"] for row in rows[2:]] == [search.texts[q] for q in sorted(kept)]
    expected = {
        "failed_round_trip": 60 - len(found),
        "kept": len(kept),
        "queries": 2 + len(kept),
        "documents_with_queries": len({search.own_Q[q] for q in kept}),
    }
    if reranker_rank:
        expected["failed_reranker"] = len(found) - len(kept)
    assert result.metrics == expected


def test_a_judge_selects_by_its_scores(context: MakeContext, data: Path) -> None:
    """Its prompts show the query and its documents; an answer without a score is none."""
    search = Search(data / "search")
    asked = context()
    prepare = prepare_judgement.Inputs(search.folder / "queries", search.folder / "corpus")
    result = prepare_judgement.JOB.run(asked, prepare_judgement.Config(), prepare)
    assert result.metrics == {"task": "judgement", "prompts": 60}
    samples = read_shards(asked.out).to_pylist()
    assert "Document: text 1\n\nQuery: query 5\n\nScore:" in samples[5]["questions"][0]
    said = ["4", "Score: 2", "**5** of 5", "none", "10", "3"]
    answers = [{**row, "answers": [[said[n % 6]]]} for n, row in enumerate(samples)]
    write_shards(data / "judged", answers, COMPLETIONS, 25)
    for least, kept in ((3, {0, 2, 5}), (1, {0, 1, 2, 4, 5}), (5, {2})):
        made = context()
        config = filter_queries.Config(least_score=least)
        inputs = filter_queries.Inputs(search.folder / "queries", judged=data / "judged")
        result = filter_queries.JOB.run(made, config, inputs)
        expected = [text for n, text in enumerate(search.texts) if n % 6 in kept]
        assert read_shards(made.out)["text"].to_pylist() == expected
        assert result.metrics["failed_judge"] == 60 - len(expected)


def test_kept_queries_have_the_columns_of_the_training_queries(
    context: MakeContext, data: Path
) -> None:
    search, made = Search(data / "search"), context()
    schema = pa.schema(
        [*add_carried(QUERIES, ["task"]), ("teacher_positive_scores", pa.list_(pa.float32()))]
    )
    write_shards(data / "train", [{**row, "task": "Find."} for row in TRAIN], schema, 9)
    (data / "train/shard-00001.parquet").unlink()
    inputs = filter_queries.Inputs(
        search.folder / "queries", data / "train", search.folder / "ranking"
    )
    filter_queries.JOB.run(made, filter_queries.Config(), inputs)
    assert read_shards(made.out).schema == schema


def test_the_ranking_of_other_queries_is_refused(context: MakeContext, data: Path) -> None:
    search = Search(data / "search")
    write_shards(
        search.folder / "ranking",
        read_shards(search.folder / "ranking").to_pylist()[::-1],
        RANKED,
        25,
    )
    inputs = filter_queries.Inputs(
        search.folder / "queries", data / "train", search.folder / "ranking"
    )
    with pytest.raises(InputError, match="ranking: rows of other queries given; expected those of"):
        filter_queries.JOB.run(context(), filter_queries.Config(), inputs)
