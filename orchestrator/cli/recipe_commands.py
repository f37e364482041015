"""Commands that run a recipe: `ratchet evaluate A B --data D` is the run of `evaluate` with models=A,B and data=D."""

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

MODEL = "a folder, a hub id, or a model of a run (see `ratchet models`)"
TEXTS = "JSONL, CSV or Parquet with `text` and optionally `id`, text with a document per line, or a folder of documents"


def number(kind: type[int] | type[float], least: float) -> Callable[[str], int | float]:
    """Return a function for argparse's `type` that reads a finite number of at least `least`."""

    def read(text: str) -> int | float:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if least <= value < math.inf:
            return value
        what = "a whole number" if kind is int else "a number"
        raise argparse.ArgumentTypeError(
            f"{text or '(empty)'}: expected {what}, {least:g} or more; correct it"
        )

    return read


@dataclass(frozen=True)
class RecipeCommand:
    """A command with the name of its recipe. An argument with the name of a parameter of the recipe sets this one."""

    help: str
    examples: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    after: str = ""
    """The location, `module:function`, of a function that is called after a finished run, with the paths of the
    summary's results and the arguments. Empty: none."""
    answers: bool = False
    """Whether `after` prints the JSON that `--json` asks for, instead of report.json."""


# A table of options reads better with one option on a few lines.
# fmt: off
def _add_evaluate(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("models", metavar="MODEL", nargs="+", help=f"bm25, {MODEL}; each is compared with the first")
    sub.add_argument("--data", metavar="VALUE", required=True,
        help="queries with their documents: a BEIR or NanoBEIR folder, pairs, ... (docs/data.md)")
    sub.add_argument("--reranker", metavar="VALUE",
        help="a model, or the address of an API, that reranks the first documents of each model")
    sub.add_argument("--depth", metavar="VALUE", help="number of documents per query that are reranked (default: 25)")


def _add_compare(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("models", metavar="BASE", nargs="+", help=f"an embedder to finetune: {MODEL}")
    sub.add_argument("--data", metavar="VALUE", required=True, help="pairs of queries and documents (docs/data.md)")


def _add_export(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("model", metavar="MODEL", help=MODEL)
    sub.add_argument("target", metavar="DIR", type=Path, help="a new folder")
    sub.add_argument("--adapter", action="store_const", const=True,
        help="write only the LoRA adapter, with the name of its base model, for PEFT")
    sub.add_argument("--name", metavar="VALUE", help="name in the model card, such as a hub id (default: name of DIR)")
    sub.add_argument("--license", metavar="VALUE",
        help="the license in the model card, an identifier of the hub such as apache-2.0 (default: unknown)")


def _add_embed(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("model", metavar="MODEL", help=MODEL)
    sub.add_argument("texts", metavar="FILE", help=TEXTS)
    sub.add_argument("target", metavar="DIR", type=Path, nargs="?", help="a new folder, unless --to is given")
    sub.add_argument("--to", metavar="ADDRESS",
        help="keep a table up to date: lancedb://FOLDER/TABLE, qdrant://..., pgvector://... or parquet://FOLDER")
    sub.add_argument("--dtype", metavar="VALUE",
        help="what the table stores vectors as: float32, float16, int8 or binary (default: float32)")
    sub.add_argument("--role", metavar="VALUE",
        help="which prompt template of the model to apply: passage or query (default: passage)")


def _add_search(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("model", metavar="MODEL", help=MODEL)
    sub.add_argument("documents", metavar="FILE", help=f"{TEXTS}, or a table that `ratchet embed --to` has written")
    sub.add_argument("--index", metavar="VALUE",
        help="flat (exact), ivf or hnsw (approximate, for millions of documents) (default: flat)")
    sub.add_argument("--query", action="append", metavar="TEXT",
        help="a query; may be repeated (default: queries are typed, or read from the standard input)")
    sub.add_argument("--top", type=number(int, 1), default=10, metavar="N", help="documents per query (default: 10)")


# fmt: on


RECIPE_COMMANDS = {
    "evaluate": RecipeCommand(
        help="compare models on your data: exact metrics, and differences with intervals",
        examples="""\
examples:
  ratchet evaluate bm25 sentence-transformers/all-MiniLM-L6-v2 20261124-2311:embedder --data beir/scifact
  ratchet evaluate base/ finetuned/ --data questions.jsonl --reranker 20261124-2311:reranker

A model is a folder, a hub id, a model of a run (`ratchet models` lists them) or bm25. Each further model is compared
with the first one, query by query. Vectors are kept in the store: a model is run only once on the same data.

""",
        add_arguments=_add_evaluate,
    ),
    "compare": RecipeCommand(
        help="finetune several embedders on your data, and compare quality, time and size",
        examples="""\
examples:
  ratchet compare sentence-transformers/all-MiniLM-L6-v2 BAAI/bge-small-en-v1.5 intfloat/e5-small-v2 --data pairs.csv

Each base is finetuned in one iteration on the same splits. The report shows the quality over the milliseconds that a
query takes and over the megabytes of the model. `ratchet models` lists the finetuned models.

""",
        add_arguments=_add_compare,
    ),
    "export": RecipeCommand(
        help="write a model as a folder for other libraries, with a model card",
        examples="""\
examples:
  ratchet export 20261124-2311 my-embedder          the model that the run ended with
  ratchet export 20261124-2311:reranker my-reranker --license apache-2.0
  ratchet export 20261124-2311:sft my-adapter --adapter
  ratchet export 20261124-2311 my-embedder --name me/my-embedder      the name that the hub gives it

sentence-transformers, transformers, FlagEmbedding and PEFT load the folder if they support this kind of model. Those
that are installed are checked: if one of them gives other results than Ratchet, the command fails and writes nothing.

""",
        add_arguments=_add_export,
        after="ratchet.jobs.export.servers:print_servers",
    ),
    "embed": RecipeCommand(
        help="embed your texts with a model: vectors as Arrow files and as .npy",
        examples="""\
examples:
  ratchet embed 20261124-2311:embedder documents.jsonl vectors
  ratchet embed sentence-transformers/all-MiniLM-L6-v2 questions.txt vectors --role query
  ratchet embed 20261124-2311:embedder "products.csv?id=sku&text=body" --to lancedb://database/products
  ratchet embed 20261124-2311:embedder handbook/ --to pgvector://me@localhost/shop/handbook --dtype float32

With --to, only documents that are new or changed are embedded and written, and those that are gone are removed.
Without, DIR contains shard-00000.arrow, ... (columns id and embedding), embeddings.npy (float32) and ids.txt.

""",
        add_arguments=_add_embed,
    ),
    "search": RecipeCommand(
        help="build an index of your documents, and search in it",
        examples="""\
examples:
  ratchet search 20261124-2311:embedder documents.jsonl
  ratchet search 20261124-2311:embedder documents.jsonl --query "adds the denominators"
  ratchet search base/ documents.parquet --index hnsw --json < queries.txt

The index is kept in the store: the next search with this model and these documents does not build it again.

""",
        add_arguments=_add_search,
        after="ratchet.jobs.indexes.prompt:ask",
        answers=True,
    ),
}
