"""Documents as parameters of recipes, and databases that keep their vectors."""

from ratchet.jobs.documents import chunk_documents, read_documents, select_changed, write_vectors
from ratchet.jobs.documents.tables import Dtype, describe_table, is_documents
from ratchet.jobs.retrieval import embed
from ratchet.jobs.retrieval.datasets import find_queries
from ratchet.orchestrator.step import Output, Source, Step, step


def prepare_documents(given: str, parameter: str, model: Source | Output) -> Step:
    """Read the rows of a table, or divide documents into chunks that are measured with the model's tokenizer."""
    found = find_queries(given, parameter, ())
    source = found["queries"]
    if is_documents(source.path):
        return step("prepare", chunk_documents.JOB, documents=source, model=model)
    return step("prepare", read_documents.JOB, documents=source, reading=found["reading"])


def write_table(texts: Step, model: Source | Output, address: str, dtype: Dtype) -> Step:
    """Embed the documents that a database does not have as they are, and write them into it."""
    table = describe_table(address, dtype)
    changed = step("select_changed", select_changed.JOB, texts=texts, model=model, **table)
    rows = changed[select_changed.ROWS]
    vectors = step("embed", embed.JOB, model=model, texts=rows)
    removed = changed[select_changed.REMOVED]
    return step("write", write_vectors.JOB, texts=rows, vectors=vectors, removed=removed, **table)
