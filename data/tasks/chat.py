"""Chats of any kind: rows with `messages`, and a verifier by name, from the user's file, or none.

    {"messages": [{"role": "system", "content": "..."}, {"role": "user", ...}, {"role": "assistant", ...}, ...]}

Rows of other libraries are converted (`formats.signatures`). The system message is optional; the assistant's messages
are the targets. Optional fields: `id`, `group` (rows that a split keeps together) and `answer` (the gold of the
verifier, any JSON; the last message where it is missing). Fields that would change what is asked or trained on, such as
`weight` and `reasoning_content` of a message, are refused.

Verifiers are `exact`, `math` (the package math-verify) and functions `verify(gold, answers)` in a user's file. They get
the answers of all turns, and return a bool, a number in [0, 1] (1 is correct) or a label (`correct` or a failure).
Samples and answers name their verifier, but contain no code: whoever verifies them gives the same file.
"""

import functools
import hashlib
import importlib.metadata
import multiprocessing
import traceback
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from ratchet.data.formats.signatures import CHAT, convert
from ratchet.data.formats.table_files import read_rows
from ratchet.data.formats.text_files import read_field, read_filled, show
from ratchet.data.retrieval.checks import refuse_repeated
from ratchet.data.tasks.task import CORRECT, Sample, Task, Verification
from ratchet.errors import DataError, InputError
from ratchet.extras import MATH_LIBRARIES, require_extra
from ratchet.files import read_text

Verify = Callable[[Any, Sequence[str]], list[Verification]]
OTHER_FIELDS = ("tools", "functions", "documents", "system", "weight", "chat_template_kwargs")
"""Fields of a row that other libraries read beside the messages."""
SECONDS = 20.0
"""Seconds for a comparison by `math`. Math-verify's own limits, of 5 seconds each, do not interrupt every one."""


def read(path: Path) -> Iterator[Sample]:
    """Yield the samples of a file. Rows with the same questions are in one group, unless they have a `group`."""
    places: dict[str, str] = {}
    groups: dict[str, str] = {}
    for number, (where, row) in enumerate(_read_rows(path)):
        name = str(number if row.get("id") is None else row["id"])
        refuse_repeated(places, name, where, "id")
        for field in OTHER_FIELDS:
            _refuse_field(where, field, row.get(field))
        texts = _read_messages(where, read_field(where, row, "messages", list))
        system = ""
        if len(texts) % 2:
            system = texts.pop(0)
        turns = tuple(zip(texts[::2], texts[1::2], strict=True))
        sample = Sample(name, "", system, turns, row.get("answer", texts[-1]), where)
        group = groups.setdefault(TASK.key(sample), name)
        if row.get("group") is not None:
            group = str(row["group"])
        yield replace(sample, group=group)


def _read_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for where, value in read_rows(path):
        for row in convert(where, value, CHAT)[0]:
            yield where, row


def describe_format(path: Path) -> str:
    """Return what the first row of a file is read as; empty if it has messages."""
    where, value = next(read_rows(path))
    _, kind = convert(where, value, CHAT)
    if kind:
        return f"rows read as {kind}"
    return ""


def _read_messages(where: str, messages: list[Any]) -> list[str]:
    """Return the texts of a chat: the system message, if there is one, then user and assistant in turn."""
    texts = []
    roles = []
    for number, message in enumerate(messages):
        place = f"{where}: messages[{number}]"
        if not isinstance(message, dict):
            raise DataError(
                f"{place} is {show(message)}; expected an object with role and content; correct the row"
            )
        roles.append(read_field(place, message, "role", str))
        texts.append(read_filled(place, message, "content"))
        for name, value in message.items():
            if name not in ("role", "content"):
                _refuse_field(place, name, value)
    expected = ["system"] * (roles[:1] == ["system"])
    expected += ["user", "assistant"] * max(1, len(roles) // 2)
    if roles != expected:
        raise DataError(
            f"{where}: messages with the roles {show(', '.join(roles))}; expected the system first, if at all, then"
            " user and assistant by turns, with the assistant at the end; correct or remove the row"
        )
    return texts


def _refuse_field(place: str, name: str, value: Any) -> None:
    """Raise DataError for a field with a value: neither null nor empty, nor the weight 1."""
    if value not in (None, "", [], {}) and (name, value) != ("weight", 1):
        raise DataError(
            f"{place} has {show(name)}: {show(value)}; expected role and content only, since every answer is trained on"
            " and nothing else is read; remove the field, or the row"
        )


def make_task(verifier: str = "none", file: Path | None = None) -> Task:
    """Return the task with a verifier: none, exact, math, or the function of that name in `file`, which is run.

    Raises InputError for an unknown name and for `math` without its package, DataError for a file that cannot be used.
    """
    if file is not None:
        code = read_text(file)
        source = {"verifier": verifier, "sha256": hashlib.sha256(code.encode()).hexdigest()}
        return replace(
            TASK, verify=_load_function(verifier, code, str(file)), scores=("score",), source=source
        )
    if verifier not in VERIFIERS:
        known = ", ".join(VERIFIERS)
        raise InputError(
            f"verifier: '{verifier}' given; expected {known}, or FILE:FUNCTION such as ./mine.py:verify"
        )
    source = {"verifier": verifier}
    if verifier == "math":
        require_extra("verifier: math given", "math", "math_verify")
        source |= {name: importlib.metadata.version(name) for name in MATH_LIBRARIES}
    verify, failures = VERIFIERS[verifier]
    return replace(TASK, verify=verify, failures=failures, source=source)


def _refuse(gold: Any, answers: Sequence[str]) -> list[Verification]:
    raise DataError(
        "chat: no verifier given; expected one; set prepare_tasks.verifier, or metric=eval_loss in sft"
    )


def verify_exact(gold: Any, answers: Sequence[str]) -> list[Verification]:
    """Compare the last answer with the gold one, without regard to case, white space and Unicode forms."""
    if _fold(answers[-1]) == _fold(str(gold)):
        return [Verification(CORRECT)]
    return [Verification("wrong")]


def _fold(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def verify_math(gold: Any, answers: Sequence[str]) -> list[Verification]:
    """Compare the last answer with the gold one as mathematics, in another process: math-verify limits the time by
    signals, which only a main thread receives, and training runs in another thread."""
    pool = _start_pool()
    try:
        compared = pool.submit(_compare, str(gold), answers[-1])
        return [Verification(compared.result(SECONDS))]
    except (TimeoutError, BrokenExecutor):
        for process in list(pool._processes.values()):
            process.kill()
        _start_pool.cache_clear()
        return [Verification("too_complex")]


@functools.cache
def _start_pool() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))


def _compare(gold: str, answer: str) -> str:
    import math_verify

    if "$" not in gold and "\\boxed" not in gold:
        gold = f"${gold}$"
    wanted = math_verify.parse(gold)
    found = math_verify.parse(answer)
    if not wanted:
        return "gold_not_parsed"
    if not found:
        return "missing_answer"
    if math_verify.verify(wanted, found):
        return CORRECT
    return "wrong_value"


VERIFIERS: dict[str, tuple[Verify, tuple[str, ...]]] = {
    "none": (_refuse, ()),
    "exact": (verify_exact, ("wrong",)),
    "math": (verify_math, ("gold_not_parsed", "missing_answer", "wrong_value", "too_complex")),
}


def _load_function(name: str, code: str, file: str) -> Verify:
    """Return the function of a user's file as a verifier. Its errors name the file and the line."""
    module: dict[str, Any] = {}

    def attempt(work: Callable[[], Any], given: str = "") -> Any:
        try:
            return work()
        except Exception as error:
            lines = [1]
            for frame in traceback.extract_tb(error.__traceback__):
                if frame.filename == file:
                    lines.append(frame.lineno or 1)
            if isinstance(error, SyntaxError):
                lines.append(error.lineno or 1)
            raise DataError(
                f"{file}:{lines[-1]}: {type(error).__name__}: {error}{given}; expected one file, which imports"
                f" installed packages only, with a function {name}(gold, answers) -> bool, number in [0, 1] or label;"
                " correct it"
            ) from None

    attempt(lambda: exec(compile(code, file, "exec"), module))
    function = attempt(lambda: module[name])

    def verify(gold: Any, answers: Sequence[str]) -> list[Verification]:
        given = f", for the gold answer {show(gold)} and the answers {show(list(answers))}"
        return [attempt(lambda: _to_verification(function(gold, list(answers))), given)]

    return verify


def _to_verification(value: Any) -> Verification:
    if isinstance(value, str) and value:
        return Verification(value, {"score": float(value == CORRECT)})
    if not isinstance(value, int | float) or not 0 <= value <= 1:
        raise TypeError(f"{show(value)} returned")
    label = "partial"
    if value == 1:
        label = CORRECT
    elif value == 0:
        label = "wrong"
    return Verification(label, {"score": float(value)})


def _get_key(sample: Sample) -> str:
    texts = [sample.system]
    for question, _ in sample.turns:
        texts.append(question)
    return "\n".join(texts)


TASK = Task(
    "chat", read, _refuse, failures=(), key=_get_key, has_repeats=True, source={"verifier": "none"}
)
