"""Shell completion by argcomplete, of commands, options, and the arguments in `LISTERS`. To turn it on in bash:

eval "$(register-python-argcomplete ratchet)"
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import fields
from functools import partial

import argcomplete

from ratchet.errors import RatchetError
from ratchet.orchestrator import recipe
from ratchet.orchestrator.cli.arguments import Parser
from ratchet.orchestrator.run_log import list_run_logs
from ratchet.orchestrator.run_models import list_models
from ratchet.orchestrator.store import Store

Lister = Callable[[argparse.Namespace], list[str]]


def complete(parser: Parser) -> None:
    """Print the completions that the shell asks for, and end the process."""
    for command in parser.list_commands().values():
        for action in command._actions:
            if lister := LISTERS.get(action.dest):
                action.completer = partial(_list_names, lister)  # type: ignore[attr-defined]
    argcomplete.autocomplete(parser)


def _list_names(lister: Lister, *, parsed_args: argparse.Namespace, **_: object) -> list[str]:
    try:
        return lister(parsed_args)
    except RatchetError:
        return []  # no such recipe, no store: there is nothing to offer


def _list_settings(arguments: argparse.Namespace) -> list[str]:
    """Return `NAME=` of the recipe's parameters, and `JOB.SETTING=` of its jobs."""
    found = recipe.find(arguments.recipe)
    jobs = {}
    for step in recipe.make_example_steps(found):
        jobs[step.job.name] = step.job
    settings = []
    for name, job in jobs.items():
        for field in fields(job.config):
            settings.append(f"{name}.{field.name}")
    made: list[str] = []
    for name in (*found.parameters, *settings):
        made.append(f"{name}=")
    return made


LISTERS: dict[str, Lister] = {
    "recipe": lambda _: [*recipe.names(), *recipe.job_names()],
    "set": _list_settings,
    **dict.fromkeys(("run", "before", "after"), lambda a: [run.run_id for run in list_run_logs(Store.view(a.store))]),
    **dict.fromkeys(("model", "models"), lambda a: [model.name for model in list_models(Store.view(a.store))]),
}
"""`dest` of an argument in argparse -> the function that returns its completions."""
