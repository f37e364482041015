"""The report's two files: complete, self-contained, escaped, and true to the run."""

from __future__ import annotations

import math
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from page import Page

from ratchet.orchestrator.reporting.formatting import format_duration
from ratchet.orchestrator.reporting.report import write_report
from ratchet.orchestrator.reporting.run_data import RunReport, StepReport

NASTY = "Is \\( 3 < x \\le \\frac{1}{2} \\) & y > 0?</p><script>alert('x')</script>\n"
NASTY += '"quoted" | `tick` $a_1$ \x1b[31mred\x00'


def noisy(seed: int, steps: int, start: float, end: float) -> dict[str, list[float]]:
    rng = random.Random(seed)
    level = [end + (start - end) * math.exp(-4 * i / steps) for i in range(steps)]
    return {"x": [i * 5.0 for i in range(steps)], "y": [v * rng.gauss(1, 0.08) for v in level]}


def make_case(query: str, heading: str, right: str, rank: int | None, others: list[str]) -> dict:
    found = [{"text": t, "good": False} for t in others]
    if rank:
        found.insert(rank - 1, {"text": right, "good": True})
    return {"title": query, "columns": {heading: found[:5]}}


WRONG = [
    "Carries out operations from left to right regardless of priority order",
    "Believes order of operations does not affect the answer to a calculation",
    "Misunderstands order of operations in algebraic expressions",
    "Answers as if there are brackets when there are none: \\( 3 \\times (2 + 4) - 5 \\)",
    "Does not understand the role of brackets, e.g. believes \\(a(b + c) = ab + c\\)",
]
QUERY = (
    "Question: \\[ 3 \\times 2+4-5 \\] Where do the brackets need to go to make the answer equal \\( 13 \\)?\n"
    "Hint: Use the order of operations to carry out calculations involving powers\n"
    "Correct answer: \\( 3 \\times(2+4)-5 \\)\nWrong answer: Does not need brackets"
)
QUERY_2 = (
    "Question: Simplify the following, if possible: \\( \\frac{m^{2}+2 m-3}{m-3} \\)\n"
    "Hint: Simplify an algebraic fraction by factorising the numerator\n"
    "Correct answer: Does not simplify\nWrong answer: \\( m+1 \\)"
)


def sample() -> RunReport:
    """A run of two iterations with baselines, close to what the quickstart gives."""
    clock = 1_740_837_720.0
    steps = [
        StepReport(
            "prepare",
            "prepare",
            "hit",
            "3f9a" * 16,
            seconds=14.2,
            inputs=[("source", "eedi", "77aa" * 16)],
            config={"fraction": 0.2, "seed": 42},
            metrics={"passages": 2587, "train": 3496, "valid": 874},
        ),
        StepReport(
            "bm25",
            "evaluate_retrieval",
            "hit",
            "ab01" * 16,
            seconds=0.8,
            inputs=[("queries", "prepare[valid]", "12cd" * 16)],
            config={"ranker": "bm25"},
            metrics={"map@25": 0.1283, "recall@25": 0.4131},
        ),
        StepReport(
            "zero_shot/evaluate",
            "evaluate_retrieval",
            "done",
            "cd02" * 16,
            seconds=18.4,
            inputs=[("queries", "prepare[valid]", "12cd" * 16)],
            metrics={"map@25": 0.1763, "recall@25": 0.5504},
            cases={
                "Queries that changed most": [
                    make_case(
                        QUERY,
                        "zero-shot",
                        "Does not know the role of brackets in changing the order of operations",
                        5,
                        WRONG,
                    ),
                    make_case(
                        QUERY_2,
                        "zero-shot",
                        "Does not recognise that a fraction with no common factor cannot be simplified",
                        None,
                        WRONG,
                    ),
                ]
            },
        ),
    ]
    at = clock + 19
    for i, (score, recall, seconds) in enumerate(
        [(0.3127, 0.7426, 402.0), (0.3581, 0.7918, 431.0)]
    ):
        train = StepReport(
            f"iter{i}/finetune_embedder",
            "finetune_embedder",
            "done",
            f"{i}e" * 32,
            retries=i,
            seconds=seconds,
            inputs=[
                ("base", "all-MiniLM-L6-v2", "99bb" * 16),
                ("mined", f"iter{i}/mine", f"{i}f" * 32),
                ("valid", "prepare[valid]", "12cd" * 16),
            ],
            config={
                "learning_rate": 2e-4,
                "temperature": 0.02,
                "epochs": 3,
                "lora_rank": 32,
                "window": (2, 200),
                "distill": False,
            },
            metrics={"map@25": score, "best_epoch": 2, "tokens": 11_482_113},
            curves={
                "loss against step": noisy(i, 320, 2.1 - 0.5 * i, 0.42 - 0.08 * i),
                "map@25 against epoch": {
                    "x": [0, 1, 2, 3],
                    "y": [0.176 + 0.137 * i, score - 0.04, score, score - 0.012],
                },
            },
            tables={
                "Epochs": [
                    {
                        "epoch": e,
                        "loss": 0.9 / (e + 1) - 0.1 * i,
                        "map@25": score - abs(2 - e) * 0.013,
                        "recall@25": recall - abs(2 - e) * 0.01,
                        "kept": e == 2,
                    }
                    for e in (1, 2, 3)
                ]
            },
            message="" if i == 0 else "kept epoch 2 of 3: epoch 3 was worse on held-out queries",
        )
        steps += [
            StepReport(
                f"iter{i}/embed_corpus",
                "embed",
                "done",
                f"{i}a" * 32,
                seconds=16,
                inputs=[("texts", "prepare[corpus]", "34ef" * 16)],
                config={"role": "passage"},
                metrics={"rows": 2587},
            ),
            StepReport(
                f"iter{i}/mine",
                "mine",
                "done",
                f"{i}c" * 32,
                seconds=12,
                inputs=[("corpus", f"iter{i}/embed_corpus", f"{i}b" * 32)],
                config={"window": (2, 200), "negatives": 15, "margin": 0.95},
                metrics={"rows": 3496, "suspects": 211},
            ),
            train,
            StepReport(
                f"iter{i}/evaluate",
                "evaluate_retrieval",
                "done",
                f"{i}d" * 32,
                seconds=19.6,
                inputs=[("model", f"iter{i}/finetune_embedder", f"{i}9" * 32)],
                metrics={"map@25": score, "recall@25": recall},
                cases={
                    "Queries that changed most": [
                        make_case(
                            QUERY,
                            f"iteration {i}",
                            "Does not know the role of brackets in changing the order of operations",
                            2 - i,
                            WRONG,
                        ),
                        make_case(
                            QUERY_2,
                            f"iteration {i}",
                            "Does not recognise that a fraction with no common factor cannot be simplified",
                            4 - i,
                            WRONG,
                        ),
                    ]
                },
            ),
        ]
        at += seconds + 55
    return RunReport(
        title="quickstart",
        run_id="20250301-140200-b7c1",
        status="finished",
        started=clock - 1,
        seconds=at - clock + 2,
        command="python -m orchestrator run quickstart --set data=data/eedi --set iterations=2",
        doc="Finds the misconception behind a pupil's wrong answer: mines negatives with the current embedder,\n"
        "trains the next one on them, and repeats.\n\nEach iteration keeps its best epoch by held-out MAP@25.",
        rows={
            "BM25": {"MAP@25": 0.1283, "R@25": 0.4131, "NDCG@10": 0.1642, "time": 0.8},
            "zero-shot": {"MAP@25": 0.1763, "R@25": 0.5504, "NDCG@10": 0.2208, "time": 18.4},
            "iteration 0": {"MAP@25": 0.3127, "R@25": 0.7426, "NDCG@10": 0.3711, "time": 449.6},
            "iteration 1": {"MAP@25": 0.3581, "R@25": 0.7918, "NDCG@10": 0.4206, "time": 478.6},
        },
        baselines=["BM25", "zero-shot"],
        steps=steps,
        parameters={
            "iterations": 2,
            "base": "all-MiniLM-L6-v2",
            "data": "data/eedi",
            "window": (2, 200),
            "seed": 42,
        },
        provenance={
            "ratchet": "0.1.0",
            "python": "3.11.7",
            "torch": "2.13.0",
            "ray": "2.60.0",
            "machine": "Linux x86_64, 2 CPUs, no GPU",
        },
    )


@pytest.fixture
def broken() -> RunReport:
    """The same run, dead in its second training, with texts that try to break out."""
    data = sample()
    steps = [
        replace(s, status="failed", message=NASTY, tables={}, curves={}, seconds=40.0)
        if s.name == "iter1/finetune_embedder"
        else replace(
            s,
            status="pending",
            seconds=None,
            message="needs iter1/finetune_embedder, which failed",
            cases={},
        )
        if s.name == "iter1/evaluate"
        else s
        for s in data.steps
    ]
    rows = {**data.rows, "iteration 1": dict.fromkeys(data.rows["iteration 1"])}
    return replace(
        data,
        status="failed",
        steps=steps,
        rows=rows,
        title=NASTY,
        doc=NASTY,
        parameters={NASTY: NASTY},
        command=NASTY,
    )


def both(folder: Path, data: RunReport) -> tuple[Page, str, str]:
    html, markdown = write_report(folder, data)
    text = html.read_text(encoding="utf-8")
    return Page(text), text, markdown.read_text(encoding="utf-8")


@pytest.mark.slow
def test_every_step_and_number_is_there(tmp_path):
    data = sample()
    page, _, markdown = both(tmp_path, data)
    seen = MarkdownIt("gfm-like", {"linkify": False}).render(markdown)
    for step in data.steps:
        assert step.name in page.text
        assert step.name in re.sub(r"<[^>]+>", "", seen)
        assert step.step_id[:10] in page.text
    for row in data.rows.values():
        for column, value in row.items():
            shown = format_duration(value) if column == "time" else f"{value:.4f}"
            assert shown in page.text
            assert shown in markdown
    for text in (
        data.command,
        data.run_id,
        "all-MiniLM-L6-v2",
        "2.13.0",
        "0.0002",
        "2, 200",
        "epoch 3 was worse",
    ):
        assert text in page.text
    assert data.command in markdown


@pytest.mark.slow
def test_sections_follow_the_question_a_reader_asks(tmp_path):
    page, text, _ = both(tmp_path, sample())
    order = re.findall(r"<h2>([^<]+)</h2>", text)
    assert order == ["Result", "Charts", "Tables", "Cases", "Steps", "Reproduce"]
    # The picture comes before the table.
    assert text.index("<svg") < text.index("<table")
    assert sum(tag == "svg" and a.get("role") == "img" for tag, a in page.tags) == 4


@pytest.mark.slow
@pytest.mark.parametrize("which", ["sample", "broken"])
def test_the_page_loads_nothing(tmp_path, which, broken):
    page, text, _ = both(tmp_path, sample() if which == "sample" else broken)
    loading = {
        "src",
        "srcset",
        "href",
        "xlink:href",
        "action",
        "data",
        "poster",
        "background",
        "formaction",
    }
    for tag, attributes in page.tags:
        if tag == "use":  # a mark of a chart, defined in the same drawing
            assert attributes["xlink:href"].startswith("#")
            continue
        assert tag not in {"link", "iframe", "object", "embed", "base", "form", "img", "image"}
        assert not loading & set(attributes), (tag, attributes)
        assert not any(name.startswith("on") for name in attributes), (tag, attributes)
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)
    assert not re.search(r"https?:", re.sub(r'xmlns(:\w+)?="[^"]*"', "", text))
    policy = next(
        a["content"] for t, a in page.tags if a.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none'")
    assert "script" not in policy


@pytest.mark.slow
def test_texts_cannot_break_out(tmp_path, broken):
    page, text, markdown = both(tmp_path, broken)
    assert not any(tag == "script" for tag, _ in page.tags)
    assert "alert('x')</script>" not in text
    assert " ".join(["</script>", '"quoted"', "|", "`tick`", "$a_1$", "red"]) in page.text
    assert not {"\x1b", "\x00"} & set(text + markdown)
    # In Markdown, too, the text of a query is read as text.
    rendered = MarkdownIt("gfm-like", {"linkify": False, "html": True}).render(markdown)
    assert "<script" not in rendered


@pytest.mark.slow
def test_a_failure_says_why_at_the_top(tmp_path, broken):
    page, text, markdown = both(tmp_path, broken)
    assert text.index("iter1/finetune_embedder failed") < text.index("<h2>Result")
    assert "needs iter1/finetune_embedder, which failed" in page.text
    assert "iter1/finetune_embedder failed" in markdown
    # What is not known is a dash.
    assert "–" in markdown


def test_parts_without_data_are_left_out(tmp_path):
    data = RunReport("r", "id", "interrupted", 0.0, 1.0, "", [StepReport("a", "a", "pending")])
    page, text, markdown = both(tmp_path, data)
    assert re.findall(r"<h2>([^<]+)</h2>", text) == ["Steps"]
    assert "interrupted" in page.text
    assert re.findall(r"^#+ .*", markdown, re.MULTILINE) == ["# r: interrupted", "## Steps"]
    assert "None" not in text
    assert "nan" not in page.text


@pytest.mark.soak
def test_two_thousand_steps_make_a_readable_page(tmp_path):
    steps = [
        StepReport(
            f"trial{i:04}/train",
            "train",
            "done",
            "ab" * 32,
            seconds=1.0 + i % 7,
            metrics={"map@25": i / 2000},
            curves={"loss against step": {"x": [0.0, 1.0], "y": [2.0, i / 2000]}},
            tables={"Epochs": [{"epoch": 1, "loss": 1.0}]},
        )
        for i in range(2000)
    ]
    _, text, markdown = both(tmp_path, RunReport("sweep", "id", "finished", 0.0, 2000.0, "", steps))
    assert len(text) < 4_000_000
    assert len(markdown.splitlines()) < 20_000
    assert "and 1,993 more, in grey" in text  # one chart, not two thousand


@pytest.mark.slow
def test_files_are_replaced_as_a_whole_and_by_the_same_bytes(tmp_path):
    assert both(tmp_path / "deep", sample())[1:] == both(tmp_path / "deep", sample())[1:]
    assert sorted(p.name for p in (tmp_path / "deep").iterdir()) == [
        "report.html",
        "report.json",
        "report.md",
    ]


def test_no_chart_of_one_dot(tmp_path: Path) -> None:
    data = sample()
    splits = {
        "split": "train",
        "queries": 1,
        "groups": 1,
        "documents per query, mean": 1.0,
        "median": 1,
        "maximum": 2,
    }
    lists = {
        "title": "which negatives",
        "columns": {"negatives": [{"text": "one"}, {"text": "two"}]},
    }
    step = replace(
        data.steps[0],
        tables={"splits": [splits]},
        curves={"loss against step": {"x": [1], "y": [0.5]}},
        cases={"Hard negatives": [lists]},
    )
    page, text, _ = both(tmp_path, replace(data, steps=[step], rows={"only": {"map@25": 0.5}}))
    assert "<circle" not in text
    assert "0.5000" in page.text
    assert '<figure class="table wide">' in text
    assert "which negatives" in page.text
    assert "right answer" not in page.text


@pytest.mark.slow
def test_a_right_answer_that_is_missing_in_one_list_is_told(tmp_path: Path) -> None:
    page, _, _ = both(tmp_path, sample())
    assert "right answer not in the first" in " ".join(page.text.split())
