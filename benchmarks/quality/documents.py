"""How far documents alone lead: a retriever finetuned on written questions, beside one finetuned on the real ones.

The documents are the articles of SQuAD v1.1 as Markdown files. In the place of a language model, a server with an
OpenAI-compatible API answers a paragraph with questions that people wrote for it. Both runs are tested on the questions
of the same articles, which neither run saw; those of the server are other questions than the real ones.

    python -m benchmarks.quality.documents squad/dev-v1.1.json
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from ratchet.orchestrator import api

DOCUMENT = re.compile(r"Document: (.*)\n(?:Query|Question):", re.DOTALL)


class Writer:
    """A language model of which every answer is a question that a person wrote for a paragraph in the prompt."""

    def __init__(self, questions: dict[str, list[str]]) -> None:
        self.questions = questions
        """Paragraph -> its questions."""
        self.requests = 0

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        self.requests += 1
        prompt = request["messages"][-1]["content"]
        text = " ".join(DOCUMENT.findall(prompt)[-1].split())
        known: list[str] = []
        for paragraph, own in self.questions.items():
            if paragraph[:80] in text or text[-80:] in paragraph:
                known += own
        number = request.get("n", 1)
        chosen = known[:number] or ["?"]
        choices = []
        for place in range(number):
            message = {"role": "assistant", "content": chosen[place % len(chosen)]}
            choices.append({"index": place, "finish_reason": "stop", "message": message})
        asked = len(prompt) // 4
        usage = {"prompt_tokens": asked, "completion_tokens": 12 * number, "total_tokens": asked}
        made = {"id": "0", "object": "chat.completion", "created": 0, "model": "people"}
        return {**made, "choices": choices, "usage": usage}


@contextmanager
def serve(writer: Writer) -> Iterator[str]:
    """Serve the writer's API, and yield its base URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send({"object": "list", "data": [{"id": "people", "object": "model"}]})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.send(writer.answer(json.loads(body)))

        def send(self, answer: dict[str, Any]) -> None:
            body = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()


class Articles:
    """The files that the benchmark gives to the runs: an article per Markdown file, questions, and a test in BEIR's
    format with the questions of every third article."""

    def __init__(self, path: Path, folder: Path, most: int | None) -> None:
        self.documents = folder / "documents"
        self.questions = folder / "questions.jsonl"
        self.test = folder / "test"
        self.writer: dict[str, list[str]] = {}
        """Paragraph -> the questions that the server knows: half of the paragraph's. The others are the real ones."""
        self.documents.mkdir()
        (self.test / "qrels").mkdir(parents=True)
        corpus: list[dict[str, str]] = []
        queries: list[dict[str, str]] = []
        labels = ["query-id\tcorpus-id\tscore"]
        rows = []
        for number, article in enumerate(json.loads(path.read_text())["data"][:most]):
            parts = [f"# {article['title'].replace('_', ' ')}"]
            for paragraph in article["paragraphs"]:
                text = " ".join(paragraph["context"].split())
                parts.append(text)
                name = f"d{len(corpus)}"
                corpus.append({"_id": name, "text": f"{parts[0][2:]}\n{text}"})
                # The part of a sentence that tells which chunk is meant: no chunk ends within it.
                clauses = re.split(r"[.?!;:]", text)
                part = min((one.strip() for one in clauses if len(one) > 30), key=len)
                asked = list(dict.fromkeys(one["question"].strip() for one in paragraph["qas"]))
                self.writer[text] = asked[::2]
                for question in asked[1::2]:
                    if number % 3:
                        rows.append({"query": question, "document": part})
                        continue
                    labels.append(f"q{len(queries)}\t{name}\t1")
                    queries.append({"_id": f"q{len(queries)}", "text": question})
            title = re.sub(r"\W+", "-", article["title"])
            (self.documents / f"{title}.md").write_text("\n\n".join(parts) + "\n")
        write_lines(self.questions, rows)
        write_lines(self.test / "corpus.jsonl", corpus)
        write_lines(self.test / "queries.jsonl", queries)
        (self.test / "qrels" / "test.tsv").write_text("\n".join(labels) + "\n")


def write_lines(path: Path, rows: list[dict[str, str]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("squad", type=Path)
    parser.add_argument("--articles", type=int, help="number of articles (default: all)")
    parser.add_argument("--iterations", type=int, default=2, help="iterations (default: 2)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        articles = Articles(arguments.squad, Path(work), arguments.articles)
        writer = Writer(articles.writer)
        models = ["sentence-transformers/all-MiniLM-L6-v2"]
        with serve(writer) as url:
            runs: list[dict[str, Any]] = [
                {"generator": url},
                {"queries": str(articles.questions)},
                {"generator": url, "queries": str(articles.questions)},
            ]
            for given in runs:
                done = api.run(
                    "documents",
                    store=f"{work}/store",
                    data=str(articles.documents),
                    iterations=arguments.iterations,
                    **given,
                )
                models.append(f"{done.run_id}:embedder")
                print(f"{writer.requests} requests, trained with {', '.join(given)}")
                print(done.table.to_string(), flush=True)
        test = api.run(
            "evaluate", store=f"{work}/store", models=tuple(models), data=str(articles.test)
        )
        print("\nthe base, documents alone, real questions, both")
        print(test.table.to_string())


if __name__ == "__main__":
    main()
