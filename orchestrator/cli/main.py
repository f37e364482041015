"""The command line: `ratchet`, or `python -m orchestrator`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from ratchet.errors import DISK_FULL, NOT_PERMITTED, InputError, RatchetError, describe
from ratchet.orchestrator import recipe
from ratchet.orchestrator.cli import console
from ratchet.orchestrator.cli.parser import parse
from ratchet.orchestrator.cli.termination import Termination
from ratchet.orchestrator.job_interface.snapshot import Snapshot
from ratchet.orchestrator.plan import Plan
from ratchet.orchestrator.run_log import read_last_step_ids
from ratchet.orchestrator.secrets import contains_secret, is_secret_variable
from ratchet.orchestrator.step import Step
from ratchet.orchestrator.store import Store
from ratchet.orchestrator.store.open_runs import OpenRun

Number = TypeVar("Number", int, float)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. Returns the exit status: 0 done, 1 a step failed or a result is damaged, 2 bad input, 130
    interrupted, 143 by SIGTERM."""
    arguments = parse(argv)
    with Termination() as termination:
        status = _execute(arguments)
    return 143 if status == 130 and termination.received else status


def _execute(arguments: argparse.Namespace) -> int:
    try:
        return COMMANDS[arguments.command](arguments)
    except KeyboardInterrupt:
        console.print_line("stopped; give the same command again to continue")
        return 130
    except Exception as error:
        if isinstance(error, OSError) and error.errno in DISK_FULL:
            error.filename = error.filename or arguments.store
            console.print_error(describe(error))
            return 1
        if isinstance(error, OSError) and error.errno in NOT_PERMITTED and error.filename:
            error = InputError(
                f"{error.filename}: {error.strerror}; expected permission for it; check the owner and the mode, or"
                " whether the file system is read-only"
            )
        if not isinstance(error, RatchetError):
            raise
        console.print_error(str(error))
        return 2


def _run(arguments: argparse.Namespace) -> int:
    from ratchet.orchestrator.execution.cluster import Cluster
    from ratchet.orchestrator.execution.run import Run, begin

    store = Store.open(arguments.store)
    found = recipe.find(arguments.recipe)
    steps, summary, parameters = recipe.build(found, recipe.Settings.read(_lines(arguments)))
    with OpenRun(store) as open_run:
        plan, run_log = begin(found, steps, store, parameters, ["ratchet", *sys.argv[1:]], arguments.repair)
        open_run.set_folder(run_log.folder)
        console.print_warnings(plan)
        cluster = Cluster(arguments.address, recipe.list_modules(found, steps))
        try:
            with console.make_live_view(plan, found.name, run_log.run_id) as view:
                outcome = Run(found, summary, plan, cluster, run_log, view).execute()
            console.write_report(run_log, outcome)
            console.print_outcome(run_log, outcome)
            store.publish(run_log.folder)
        finally:
            cluster.stop()
    return 130 if outcome.interrupted else 1 if outcome.failures else 0


def _sweep(arguments: argparse.Namespace) -> int:
    from ratchet.orchestrator.sweeps.command import run_sweep

    return run_sweep(arguments, _lines(arguments), ["ratchet", *sys.argv[1:]])


def _submit(arguments: argparse.Namespace) -> int:
    from ratchet.orchestrator.execution.submit import submit

    if not arguments.store:
        raise InputError("submit --store: not given; expected a folder that all machines of the cluster share")
    options = ["--store", arguments.store, *(part for line in arguments.set for part in ("--set", line))]
    if arguments.settings is not None:
        options += ["--settings", arguments.settings.name]
    missing = [name for name in arguments.env if name not in os.environ]
    if missing:
        raise InputError(f"submit --env {missing[0]}: not set here; expected an environment variable; export it first")
    for name in arguments.env:
        if is_secret_variable(name) or contains_secret(os.environ[name]):
            raise InputError(
                f"submit --env {name}: looks like a secret; expected none, since jobs show their variables;"
                " put it into a file on the cluster, or give its machines a role (docs/cluster.md)"
            )
    found = recipe.find(arguments.recipe)
    return submit(
        f"./{found.name}.py" if arguments.recipe.endswith(".py") else found.name,
        options,
        Snapshot.take([found.module]),
        [arguments.settings] if arguments.settings else [],
        address=arguments.address,
        environment={name: os.environ[name] for name in arguments.env},
        wait=not arguments.no_wait,
        say=console.print_line,
    )


def _plan(arguments: argparse.Namespace) -> int:
    store = Store.view(arguments.store, missing_ok=True)
    found = recipe.find(arguments.recipe)
    steps, _, _ = recipe.build(found, recipe.Settings.read(_lines(arguments)))
    plan = Plan(steps, store)
    plan.check()
    console.print_warnings(plan)
    console.print_plan(plan, read_last_step_ids(store, found.name) if arguments.explain else None)
    return 0


def _recipes(arguments: argparse.Namespace) -> int:
    if not arguments.recipe:
        console.print_recipes([recipe.find(name) for name in recipe.names()])
        return 0
    found = recipe.find(arguments.recipe)
    console.print_recipe(found, _example_steps(found))
    return 0


def _example_steps(found: recipe.Recipe) -> list[Step]:
    """Return the steps of a recipe with its defaults; an existing folder stands for each required parameter.

    Models are looked up on this machine only. Empty if the recipe cannot be built.
    """
    os.environ["HF_HUB_OFFLINE"] = "1"
    required = [name for name, parameter in found.parameters.items() if parameter.default is parameter.empty]
    try:
        return recipe.build(found, recipe.Settings.read([f"{name}=." for name in required]))[0]
    except RatchetError:
        return []


def _status(arguments: argparse.Namespace) -> int:
    if arguments.log:
        limit = _read_number("status --limit", arguments.limit, int)
        console.print_log(Store.view(arguments.store), limit, arguments.run or "")
    else:
        console.print_status(Store.view(arguments.store), arguments.run)
    return 0


def _report(arguments: argparse.Namespace) -> int:
    console.print_report(Store.view(arguments.store), arguments.run)
    return 0


def _gc(arguments: argparse.Namespace) -> int:
    keep = _read_number("gc --keep", arguments.keep, int)
    hours = _read_number("gc --grace-period", arguments.grace_period, float)
    store = Store.open(arguments.store, create=False) if arguments.yes else Store.view(arguments.store)
    console.collect_garbage(store, keep, hours * 3600, arguments.yes)
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    if not 0 <= arguments.sample <= 1:
        raise InputError(f"verify --sample {arguments.sample}: expected a number from 0 to 1, such as 0.1")
    return 0 if console.verify_store(Store.view(arguments.store), arguments.sample) else 1


def _read_number(option: str, text: str, kind: Callable[[str], Number]) -> Number:
    """Parse the value of an option. Raises InputError if it is not a number or below zero."""
    with suppress(ValueError):
        if (number := kind(text)) >= 0:
            return number
    what = "a whole number" if kind is int else "a number"
    raise InputError(f"{option} {text}: expected {what}, 0 or more; correct it")


def _lines(arguments: argparse.Namespace) -> list[str]:
    """Return the `name=value` settings: those of the file, then those of the command line, which take precedence."""
    return [*(recipe.read_settings(arguments.settings) if arguments.settings else ()), *arguments.set]


COMMANDS = {
    "run": _run,
    "sweep": _sweep,
    "submit": _submit,
    "plan": _plan,
    "recipes": _recipes,
    "status": _status,
    "report": _report,
    "gc": _gc,
    "verify": _verify,
}


if __name__ == "__main__":
    sys.exit(main())
