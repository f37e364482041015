"""Parsing of the command line: an argument parser whose errors have Ratchet's form, and types of numeric options."""

from __future__ import annotations

import argparse
import difflib
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from ratchet.errors import InputError
from ratchet.orchestrator import recipe
from ratchet.orchestrator.job_interface.settings import suggest
from ratchet.orchestrator.job_interface.terminal import print_clean


class Parser(argparse.ArgumentParser):
    """An argument parser that raises InputError in Ratchet's form instead of printing argparse's usage and message."""

    def error(self, message: str) -> NoReturn:
        command = self.prog.removeprefix("ratchet").strip()
        raise InputError(f"{command} {_explain(message, self)}".strip())

    def _print_message(self, message: str, file: Any = None) -> None:  # help; flushed, to notice errors of the stream
        print_clean(message, file, end="")

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse a command line. Raises InputError, with a suggestion for a misspelt name."""
        arguments, unknown = self.parse_known_args(argv)
        if unknown:
            self._refuse(arguments, unknown)
        return arguments

    def list_commands(self) -> dict[str, argparse.ArgumentParser]:
        """Return command -> its parser. The parser of a single command has none."""
        found = (action.choices for action in self._actions if isinstance(action, argparse._SubParsersAction))
        return dict(next(found, {}))

    def _refuse(self, arguments: argparse.Namespace, unknown: Sequence[str]) -> NoReturn:
        """Raise InputError for the first unknown word: a misspelt option, a setting without --set, or one too many."""
        command = arguments.command
        options = [name for action in self.list_commands()[command]._actions for name in action.option_strings]
        option, _, value = unknown[0].partition("=")
        if not value and option.startswith("-") and len(unknown) > 1:
            value = unknown[1]
        name = option.lstrip("-").replace("-", "_")
        near = difflib.get_close_matches(option, options, n=1, cutoff=0.75)
        what = "not an option"
        expected = f"expected one of {', '.join(o for o in options if o.startswith('--'))}"
        if near:
            todo = f"did you mean '{near[0]}'?"
        elif "--set" in options and value:
            is_parameter = arguments.recipe in recipe.names() and name in recipe.find(arguments.recipe).parameters
            if "." in name or is_parameter:
                place = ""
            else:
                place = "JOB."
            expected = "expected settings after --set"
            todo = f"write --set {place}{name}={value}"
        else:
            todo = f"`ratchet {command} --help` explains them"
            if not option.startswith("-"):
                what = "a word too many"
                expected = "expected options from here"
        raise InputError(f"{command} {unknown[0]}: {what}; {expected}; {todo}")


def number(kind: type[int] | type[float], least: float, most: float = math.inf) -> Callable[[str], int | float]:
    """Return a function for argparse's `type` that reads a finite number from `least` to `most`, both included."""

    def read(text: str) -> int | float:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if least <= value <= most and math.isfinite(value):
            return value
        if kind is int:
            what = "a whole number"
        else:
            what = "a number"
        if math.isinf(most):
            limits = f"{least:g} or more"
        else:
            limits = f"from {least:g} to {most:g}"
        raise argparse.ArgumentTypeError(f"{text or '(empty)'}: expected {what}, {limits}; correct it")

    return read


def _explain(message: str, parser: Parser) -> str:
    """Return argparse's message in Ratchet's form: `where: what was given; what was expected; what to do`."""
    commands = parser.list_commands()
    help = f"`{parser.prog} --help` explains them"
    if match := re.fullmatch(r"argument (\S+): invalid choice: '(.*)' \(choose from (.*)\)", message, re.DOTALL):
        option = match[1]
        given = match[2]
        known = re.findall(r"'([^']*)'", match[3])
        if commands:
            is_recipe = given in recipe.names() or given.endswith(".py")
            if is_recipe:
                hint = f"; a recipe is run by `ratchet run {given}`"
            else:
                hint = suggest(given, known)
            return f"{given}: no such command; expected one of {', '.join(known)}{hint or f'; {help}'}"
        return f"{option} {given}: expected one of {', '.join(known)}{suggest(given, known) or '; correct it'}"
    if match := re.fullmatch(r"argument ([^\s/]+)\S*: expected (?:one|at least one) argument", message):
        return f"{match[1]}: no value given; expected one after it; {help}"
    if match := re.fullmatch(r"the following arguments are required: (.*)", message):
        if commands:
            return f"command: not given; expected one of {', '.join(commands)}; {help}"
        return f"{match[1]}: not given; expected a value; {help}"
    if match := re.fullmatch(r"ambiguous option: (\S+) could match (.*)", message):
        return f"{match[1]}: begins several options; expected one of {match[2]}; write it in full"
    if match := re.fullmatch(r"argument ([^\s/]+)\S*: ignored explicit argument '(.*)'", message, re.DOTALL):
        return f"{match[1]}={match[2]}: a value given; expected none; write {match[1]} alone"
    return re.sub(r"^argument ([^\s/:]+)[^\s:]*: ", r"\1 ", message)  # message of `number`
