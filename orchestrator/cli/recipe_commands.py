"""Commands that run a recipe: `ratchet evaluate A B --data D` is the run of `evaluate` with models=A,B and data=D."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ratchet.orchestrator.cli.arguments import number


@dataclass(frozen=True)
class RecipeCommand:
    """A command, which has the name of its recipe. An argument that is called as a parameter of the recipe sets it."""

    help: str
    examples: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    before: str = ""
    """The function, `module:function`, that checks the arguments of `after` before the run. Empty: none."""
    after: str = ""
    """The function, `module:function`, that is called with the paths of the summary's results and the arguments. Empty:
    none."""
    answers: bool = False
    """Whether `after` prints the JSON that `--json` asks for, instead of report.json."""


# A table of options reads better with one option on a few lines.
# fmt: off
def _add_evaluate(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("models", metavar="MODEL", nargs="+")
    sub.add_argument("--data", metavar="VALUE", required=True,
        help="queries with their documents: a BEIR or NanoBEIR folder, pairs, ... (docs/data.md)")
    sub.add_argument("--reranker", metavar="VALUE",
        help="a model, or the address of an API, that orders each model's first documents")
    sub.add_argument("--depth", metavar="VALUE", help="documents that are reranked (default: 25)")


def _add_export(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("model", metavar="MODEL")
    sub.add_argument("target", metavar="DIR", type=Path, help="a new folder")
    sub.add_argument("--adapter", action="store_const", const=True,
        help="write the LoRA adapter alone, with the name of its base, for PEFT")
    sub.add_argument("--onnx", action="store_const", const=True, help="also write onnx/model.onnx, of an embedder")
    sub.add_argument("--int8", action="store_const", const=True,
        help="also write onnx/model_int8.onnx, and show what 8 bits cost on --data")
    sub.add_argument("--data", metavar="VALUE", help="queries with their documents, for --int8 (docs/data.md)")
    sub.add_argument("--name", metavar="VALUE", help="what the model card calls the model, such as its id on the hub")
    sub.add_argument("--license", metavar="VALUE",
        help="the license in the model card, an identifier of the hub such as apache-2.0")
    sub.add_argument("--push", metavar="OWNER/NAME", help="also upload the folder to the Hugging Face hub")
    sub.add_argument("--public", action="store_true", help="make a new repository public (default: private)")


def _add_embed(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("model", metavar="MODEL")
    sub.add_argument("texts", metavar="FILE")
    sub.add_argument("target", metavar="DIR", type=Path, help="a new folder")
    sub.add_argument("--role", metavar="VALUE",
        help="the template of the model that is applied: passage or query (default: passage)")


def _add_search(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("model", metavar="MODEL")
    sub.add_argument("documents", metavar="FILE")
    sub.add_argument("--index", metavar="VALUE",
        help="flat (exact), ivf or hnsw (approximate, for millions of documents) (default: flat)")
    sub.add_argument("--query", action="append", metavar="TEXT",
        help="a query; may be repeated (default: queries are typed, or read from the standard input)")
    sub.add_argument("--hybrid", action="store_true", help="fuse with BM25 by reciprocal ranks")
    sub.add_argument("--top", type=number(int, 1), default=10, metavar="N", help="documents per query (default: 10)")


def _add_serve(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("models", metavar="MODEL", nargs="+")
    sub.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1, this machine only)")
    sub.add_argument("--port", type=number(int, 1, 65_535), default=8000, help="port to listen on (default: 8000)")
    sub.add_argument("--replicas", type=number(int, 1), default=1, metavar="N",
        help="processes with the models; each takes a GPU, or its share of the CPUs (default: 1)")
# fmt: on


RECIPE_COMMANDS = {
    "evaluate": RecipeCommand(
        help="compare models on your data: exact metrics, differences with intervals, latency",
        examples="""\
examples:
  ratchet evaluate bm25 sentence-transformers/all-MiniLM-L6-v2 20261124-2311:embedder --data beir/scifact
  ratchet evaluate base/ finetuned/ --data questions.jsonl --reranker 20261124-2311:reranker

A model is a folder, a hub id, a model of a run (`ratchet models` lists them) or bm25. The others are compared with the
first, query by query. Vectors are kept in the store: a model that was evaluated on the data before is not run again.

""",
        add_arguments=_add_evaluate,
    ),
    "export": RecipeCommand(
        help="write a model as a folder for other libraries, with a model card",
        examples="""\
examples:
  ratchet export 20261124-2311 my-embedder          the model that the run ended with
  ratchet export 20261124-2311:reranker my-reranker --license apache-2.0
  ratchet export 20261124-2311:sft my-adapter --adapter
  ratchet export 20261124-2311 my-embedder --onnx --int8 --data beir/scifact
  ratchet export 20261124-2311 my-embedder --name me/my-embedder --push me/my-embedder

The folder is loaded by sentence-transformers, transformers, FlagEmbedding and PEFT, as far as they are installed and
the model is of their kind, and nothing is written where one of them gives other results than Ratchet.

""",
        add_arguments=_add_export,
        after="ratchet.jobs.export.hub:push",
    ),
    "embed": RecipeCommand(
        help="embed your texts with a model: vectors as Arrow files and as .npy",
        examples="""\
examples:
  ratchet embed 20261124-2311:embedder documents.jsonl vectors
  ratchet embed sentence-transformers/all-MiniLM-L6-v2 questions.txt vectors --role query

DIR has shard-00000.arrow and so on (id, embedding), embeddings.npy (float32) and ids.txt.

""",
        add_arguments=_add_embed,
    ),
    "search": RecipeCommand(
        help="build an index of your documents, and search in it",
        examples="""\
examples:
  ratchet search 20261124-2311:embedder documents.jsonl
  ratchet search 20261124-2311:embedder documents.jsonl --query "adds the denominators" --hybrid
  ratchet search base/ documents.parquet --index hnsw --json < queries.txt

The index is kept in the store: the same command searches at once.

""",
        add_arguments=_add_search,
        after="ratchet.jobs.indexes.prompt:ask",
        answers=True,
    ),
    "serve": RecipeCommand(
        help="serve embedders and rerankers over HTTP, with OpenAI's and Cohere's requests",
        examples="""\
examples:
  ratchet serve 20261124-2311:embedder
  ratchet serve 20261124-2311:embedder 20261124-2311:reranker --port 8080

  curl http://127.0.0.1:8000/v1/embeddings -H "Authorization: Bearer $TOKEN" -H "Content-Type: application/json" \\
    -d '{"model": "20261124-2311:embedder", "input": ["a question"], "input_type": "query"}'

POST /v1/embeddings takes OpenAI's requests; `input_type` (passage or query) says which template of the model is
applied. POST /rerank takes Cohere's; scores are the logistic function of the model's. GET /v1/models and /health
answer too. Clients send a bearer token: that of the environment variable RATCHET_TOKEN, else a random one, which is
printed. The models are exported first, and are not served where another library gives other results.

""",
        add_arguments=_add_serve,
        before="ratchet.jobs.serving.server:check",
        after="ratchet.jobs.serving.server:serve",
        answers=True,
    ),
}
