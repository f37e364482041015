"""`ratchet search`: print the best documents of an index for queries, as text or JSON."""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from ratchet.orchestrator.job_interface.clean_output import print_clean


def ask(paths: Mapping[str, Path], arguments: argparse.Namespace) -> None:
    """Search with the queries of the command line, or if there are none, those on standard input, one per line. paths:
    the folder `model`, and `index` unless the documents are a table."""
    from ratchet.jobs.indexes.finder import load_finder

    finder = load_finder(paths["model"], paths.get("index"), arguments.documents)
    for query in arguments.query or read_queries():
        found = finder.find(query, arguments.top)
        if arguments.json:
            rows = [
                {"id": name, "score": round(score, 6), "text": text} for name, text, score in found
            ]
            print_clean(json.dumps({"query": query, "documents": rows}, ensure_ascii=False))
        else:
            print_clean(f"\n{query}")
            for rank, (name, text, score) in enumerate(found, 1):
                print_clean(f"{rank:>3}  {score:.4f}  {name}  {shorten(text)}")


def read_queries() -> Iterator[str]:
    """Yield the lines of standard input, with a prompt if it is a terminal."""
    types = sys.stdin.isatty()
    while True:
        if types:
            print_clean("\nquery (empty to end): ", end="")
        line = sys.stdin.readline()
        if not line or (types and not line.strip()):
            return
        if line.strip():
            yield line.strip()


def shorten(text: str, width: int = 100) -> str:
    """Return a text on one line, truncated to `width` characters."""
    line = " ".join(text.split())
    if len(line) <= width:
        return line
    return f"{line[: width - 1]}…"
