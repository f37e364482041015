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
from ratchet.orchestrator.job_interface.clean_output import print_clean
from ratchet.orchestrator.job_interface.settings import suggest


class Parser(argparse.ArgumentParser):
    """An argument parser that raises InputError in Ratchet's form instead of printing argparse's usage and message."""

    def error(self, message: str) -> NoReturn:
        command = self.prog.removeprefix("ratchet").strip()
        raise InputError(f"{command} {_explain(message, self)}".strip())

    def _print_message(
        self, message: str, file: Any = None
    ) -> None:  # help; flushed, to notice errors of the stream
        print_clean(message, file, end="")

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse a command line. Raises InputError, with a suggestion for a misspelt name."""
        arguments, unknown = self.parse_known_args(argv)
        if unknown:
            self._refuse(arguments, unknown)
        return arguments

    def list_commands(self) -> dict[str, argparse.ArgumentParser]:
        """Return command -> its parser. The parser of a single command has none."""
        found = (
            action.choices
            for action in self._actions
            if isinstance(action, argparse._SubParsersAction)
        )
        return dict(next(found, {}))

    def _refuse(self, arguments: argparse.Namespace, unknown: Sequence[str]) -> NoReturn:
        """Raise InputError for the first unknown word: a misspelt option, a setting without --set, or one too many."""
        command = arguments.command
        options = [
            name
            for action in self.list_commands()[command]._actions
            for name in action.option_strings
        ]
        option, _, value = unknown[0].partition("=")
        if not value and option.startswith("-") and len(unknown) > 1:
            value = unknown[1]
        name = option.lstrip("-").replace("-", "_")
        near = difflib.get_close_matches(option, options, n=1, cutoff=0.75)
        expected = f"expected one of {', '.join(o for o in options if o.startswith('--'))}"
        todo = f"`ratchet {command} --help` explains them"
        if near:
            todo = f"did you mean '{near[0]}'?"
        elif "--set" in options and value:
            expected = "expected settings after --set"
            is_parameter = (
                arguments.recipe in recipe.names()
                and name in recipe.find(arguments.recipe).parameters
            )
            todo = f"write --set {'' if '.' in name or is_parameter else 'JOB.'}{name}={value}"
        raise InputError(f"{command} {unknown[0]}: not an option; {expected}; {todo}")


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


def _explain(message: str, parser: Parser) -> str:
    """Return argparse's message with a suggestion for a misspelt command or value."""
    help = f"`{parser.prog} --help` explains them"
    choice = re.fullmatch(
        r"argument (\S+): invalid choice: '(.*)' \(choose from (.*)\)", message, re.DOTALL
    )
    if choice is None:
        return f"{message.removeprefix('argument ')}; {help}"
    known = re.findall(r"'([^']*)'", choice[3])
    hint = suggest(choice[2], known) or f"; {help}"
    if parser.list_commands():
        if choice[2] in recipe.names() or choice[2].endswith(".py"):
            hint = f"; a recipe is run by `ratchet run {choice[2]}`"
        return f"{choice[2]}: no such command; expected one of {', '.join(known)}{hint}"
    return f"{choice[1]} {choice[2]}: expected one of {', '.join(known)}{hint}"
