"""Columns of pairs: which column has which role, by its name or by an option behind the path."""

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs, quote

from ratchet.data.formats.text_files import FIELD, show
from ratchet.errors import DataError

COLUMNS: Mapping[str, Sequence[str]] = {
    "query": (
        "query",
        "anchor",
        "question",
        "text",
        "sentence1",
        "text1",
        "question1",
        "premise",
        "sent0",
        "sentence_a",
        "text_a",
        "sentence_1",
        "text_1",
        "search_query",
    ),
    "positive": (
        "positive",
        "pos",
        "answer",
        "document",
        "positives",
        "response",
        "passage",
        "sentence2",
        "text2",
        "question2",
        "hypothesis",
        "sent1",
        "sentence_b",
        "text_b",
        "sentence_2",
        "text_2",
        "doc",
        "pos_doc",
        "relevant_passages",
        "context",
    ),
    "negative": (
        "negative",
        "neg",
        "negatives",
        "negs",
        "hard_neg",
        "hard_negative",
        "hard_negatives",
        "neg_docs",
        "neg_doc",
        "rejected_response",
        "rejected_responses",
    ),
    "task": ("task", "prompt"),
    "prompt": ("reranker_prompt",),
    "group": ("group",),
    "id": ("query_id", "qid", "id", "_id"),
}
"""Option -> default names of its column, as `fold_name` returns them. The first that exists is read; of `negative` all,
also `negative_1`, ... A column that an option names has no other role."""
LABELS = (
    "label",
    "labels",
    "relevance",
    "relevant",
    "is_relevant",
    "is_duplicate",
    "is_selected",
    "is_positive",
    "is_paraphrase",
    "gold_label",
)
"""Columns that say whether a row is a pair (see `read_label`)."""
RATINGS = ("score", "scores", "similarity", "similarity_score", "rating", "ratings", "weight")
"""Columns that other libraries read as the rating or the weight of a pair: they are refused without `min_score`."""
PAIR_IDS = ("id", "_id")
"""Columns that name the row, not its query, where rows have a label."""
NEGATIVE = re.compile(r"(hard_)?neg(ative)?_?\d+")
"""Other names of columns of negatives."""
SCORES = ("pos_scores", "neg_scores")
"""Columns of a teacher's scores, one for each positive and for each negative."""
OTHERS = ("ignore", "instruction", "min_score", "name", "split", "template")
"""Options of any format. ignore: columns that are not read, separated by commas; instruction: task of all queries;
min_score: the rating from which on a row is a pair; name: prefix of ids; split: which files of a folder, or rows of the
column `split`; template: query text from several columns."""
PROPOSED = (
    "query",
    "anchor",
    "question",
    "title",
    "headline",
    "subject",
    "name",
    "summary",
    "docstring",
    "claim",
    "instruction",
    "input",
    "prompt",
    "problem",
    "keyword",
    "text",
)
"""Columns that are proposed as the query, in this order."""
YES = ("1", "1.0", "true", "yes", "entailment")
NO = ("0", "0.0", "false", "no", "contradiction", "not_entailment")
NEUTRAL = ("neutral", "-1", "-")

Options = Mapping[str, Sequence[str]]


def parse_options(text: str, where: str) -> Options:
    """Parse the query string behind a path, such as `query=title&positive=body`. Raises DataError, beginning with
    `where`, for unknown options, those without a value or with several, and two that exclude each other."""
    given = parse_qs(text, keep_blank_values=True)
    if "text" in given:  # what documents have in the place of a query
        given["query"] = [*given.get("query", []), *given.pop("text")]
    for key, values in given.items():
        several = len(values) > 1 and key != "negative"
        if key not in (*COLUMNS, *OTHERS) or "" in values or several:
            raise DataError(
                f"{where}: '{key}={'&'.join(values)}' given behind the path; expected some of"
                f" {', '.join((*COLUMNS, *OTHERS))}, each with one value; correct it"
            )
    if "query" in given and "template" in given:
        raise DataError(
            f"{where}: query and template given behind the path; expected one of the two; leave one out"
        )
    return given


def fold_name(name: str) -> str:
    """Return the name of a column in lower case, with `_` for spaces."""
    return name.strip().lower().replace(" ", "_")


def find_columns(
    where: str, row: Mapping[str, Any], options: Options, labelled: bool
) -> dict[str, Sequence[str]]:
    """Return the columns of each role among those of a row, also of the roles `split`, `label`, `scores` and `unread`.
    Raises DataError for missing columns, and for ratings of pairs."""
    taken = set(options.get("ignore", ("",))[0].split(","))
    for role in COLUMNS:
        taken.update(options.get(role, ()))
    free: dict[str, str] = {}
    """Folded name -> name."""
    for name in row:
        if name not in taken:
            free.setdefault(fold_name(name), name)
    labels: Sequence[str] = LABELS
    if "min_score" in options:
        labels = LABELS + RATINGS
    found: dict[str, Sequence[str]] = {"label": []}
    if labelled:
        found["label"] = [name for folded, name in free.items() if folded in labels]
    for role, defaults in COLUMNS.items():
        given = options.get(role, ())
        if role == "query" and "template" in options:
            given = FIELD.findall(options["template"][0])
        if not labelled and role in ("positive", "negative"):
            own = []
        elif given:
            own = [name for name in given if name in row]
        elif role == "negative":
            own = [
                name for fold, name in free.items() if fold in defaults or NEGATIVE.fullmatch(fold)
            ]
        else:
            if role == "id" and found["label"]:
                defaults = [name for name in defaults if name not in PAIR_IDS]
            own = [free[name] for name in defaults if name in free][:1]
        needed = role == "query" or (role == "positive" and labelled)
        if len(own) < max(len(given), needed):
            raise DataError(
                f"{where}: no column for the {role}; found {show(', '.join(row))}; expected"
                f" {' or '.join(given or defaults[:5])}; rename one, or name it behind the path as"
                f" '?{_propose(row, role, labelled)}'"
            )
        found[role] = own
    others: dict[str, list[str]] = {"split": [], "scores": [], "unread": []}
    for folded, name in free.items() if labelled else ():
        if any(name in own for own in found.values()) or folded == "type":  # of FlagEmbedding
            continue
        if folded in RATINGS:
            raise DataError(
                f"{where}: column {name} given; expected pairs without ratings; add ?min_score=NUMBER behind the path,"
                " the rating from which on a row is a pair (others are negatives), or ?ignore="
                f"{name}, or use FlagEmbedding's pos_scores and neg_scores for a teacher's scores"
            )
        if folded == "split" and "split" not in options:
            others["split"].append(name)
        elif folded in SCORES:
            others["scores"].append(name)
        else:
            others["unread"].append(name)
    return found | others


def _propose(row: Mapping[str, Any], role: str, labelled: bool) -> str:
    """Return the options that name the columns of a row: those with usual names, or else the first text as the query
    and the longest other one as its positive; `ROLE=NAME` if there are too few texts."""
    lengths = {}
    for name, value in row.items():
        if isinstance(value, str) and re.search(r"[^\W\d]", value) and "://" not in value:
            lengths[name] = len(value)
    if len(lengths) < 1 + labelled:
        return f"{role}=NAME"
    query = min(lengths, key=lambda name: _find_place(name, PROPOSED))
    proposed = f"query={quote(query, safe=' ')}"
    if labelled:
        del lengths[query]
        longest = min(
            lengths, key=lambda name: (_find_place(name, COLUMNS["positive"]), -lengths[name])
        )
        proposed += f"&positive={quote(longest, safe=' ')}"
    return proposed


def _find_place(name: str, usual: Sequence[str]) -> int:
    """Return the index of a column's name, the last if it is none of them."""
    return (*usual, fold_name(name)).index(fold_name(name))


def describe_columns(columns: Mapping[str, Sequence[str]]) -> str:
    """Return which columns are read as what, if their names do not say it."""
    read = []
    for role in ("query", "positive", "negative"):
        for name in columns[role]:
            if fold_name(name) != role:
                read.append(f"{name} as {role}")
    for name in columns["label"]:
        read.append(f"{name} as label of the pair")
    return ", ".join(read)


def read_label(where: str, name: str, value: Any, options: Options) -> bool | None:
    """Return whether a row is a pair by its label, or by the option `min_score`; None: it is neutral. Raises DataError
    for other values."""
    text = str(value).strip().lower()
    if "min_score" in options:
        try:
            return float(text) >= float(options["min_score"][0])
        except ValueError:
            raise DataError(
                f"{where}: {name} {show(value)} given, with ?min_score={options['min_score'][0]}; expected numbers;"
                " correct them"
            ) from None
    if text in NEUTRAL:
        return None
    if text not in YES + NO:
        raise DataError(
            f"{where}: {name} {show(value)} given; expected 1 for a pair and 0 for a query with a negative; correct it,"
            f" add ?min_score=NUMBER behind the path if it is a rating, or ?ignore={name} if it means something else"
        )
    return text in YES
