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
from ratchet.jobs.synthetic import clean_queries, filter_queries, prepare_query_generation
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
            "gold": json.dumps({"document": TEXTS[name]}),
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
        "c": ["bread?", "Bread?", "", "Bread is baked.", "who wrote faust?", "baking"],
        "d": ["bread?", "snow!\nand ice", "..."],
    }
    result = clean(made, data, answers)
    counts = {"completions": 9, "empty": 2, "copies": 1, "duplicates": 2, "queries": 4}
    assert result.metrics == counts
    rows = read_shards(made.out).to_pylist()
    assert [(row["id"], row["text"], row["positives"]) for row in rows] == [
        ("synthetic/c/0", "bread?", ["c"]),
        ("synthetic/c/5", "baking", ["c"]),
        ("synthetic/d/0", "bread?", ["d"]),
        ("synthetic/d/1", "snow!", ["d"]),
    ]


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
        self.texts[3] = self.texts[0].upper()  # of documents 0 and 1
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
        counts = {"completions": 100, "empty": 30, "copies": 4, "duplicates": 6, "queries": 60}
        (folder / "queries" / clean_queries.COUNTS_FILE).write_text(json.dumps(counts))
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
    names = [search.folder / name for name in ("queries", "ranking")]
    result = filter_queries.JOB.run(
        made, config, filter_queries.Inputs(data / "train", *names, reranked)
    )

    found = {q for q in range(60) if search.ranks[q] <= rank}
    passed = {q for q in found if reranker_rank is None or search.reranks[q] <= reranker_rank}
    both = {0, 3} <= passed
    kept = passed - ({max((3, 0), key=lambda q: search.ranks[q])} if both else set())
    assert 0 < len(kept) < 60
    rows = read_shards(made.out).to_pylist()
    assert rows[:2] == TRAIN, "real queries first, as they are"
    assert [row["text"] for row in rows[2:]] == [search.texts[q] for q in sorted(kept)]
    assert all(row["id"].startswith("synthetic/") for row in rows[2:])
    assert result.metrics == {
        "completions": 100,
        "empty": 30,
        "copies": 4,
        "duplicates": 6 + both,
        "failed_round_trip": 60 - len(found),
        "failed_reranker": len(found) - len(passed),
        "kept": len(kept),
        "queries": 2 + len(kept),
        "documents_with_queries": len({search.own_Q[q] for q in kept}),
    }
    left_out = ("empty", "copies", "duplicates", "failed_round_trip", "failed_reranker")
    assert sum(int(result.metrics[name]) for name in left_out) + len(kept) == 100, (
        "each answer is counted once"
    )
    assert rank < 20 or both or reranker_rank, "the case of two documents with one query occurs"


def test_kept_queries_have_the_columns_of_the_training_queries(
    context: MakeContext, data: Path
) -> None:
    search, made = Search(data / "search"), context()
    schema = pa.schema(
        [*add_carried(QUERIES, ["task"]), ("teacher_positive_scores", pa.list_(pa.float32()))]
    )
    write_shards(data / "train", [{**row, "task": "Find."} for row in TRAIN], schema, 9)
    (data / "train/shard-00001.parquet").unlink()
    names = [search.folder / name for name in ("queries", "ranking")]
    filter_queries.JOB.run(
        made, filter_queries.Config(), filter_queries.Inputs(data / "train", *names)
    )
    assert read_shards(made.out).schema == schema


def test_the_ranking_of_other_queries_is_refused(context: MakeContext, data: Path) -> None:
    search = Search(data / "search")
    write_shards(
        search.folder / "ranking",
        read_shards(search.folder / "ranking").to_pylist()[::-1],
        RANKED,
        25,
    )
    names = [search.folder / name for name in ("queries", "ranking")]
    with pytest.raises(InputError, match="ranking: rows of other queries given; expected those of"):
        filter_queries.JOB.run(
            context(), filter_queries.Config(), filter_queries.Inputs(data / "train", *names)
        )
