"""The commands of `ratchet`, and the output of `plan` and `recipes`."""

import argparse
import json
import os
import pkgutil
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, redirect_stdout
from inspect import Parameter

from ratchet.orchestrator import recipe
from ratchet.orchestrator.cli import store_commands
from ratchet.orchestrator.cli.error_report import find_places, report_error
from ratchet.orchestrator.cli.parser import parse
from ratchet.orchestrator.cli.recipe_commands import RECIPE_COMMANDS
from ratchet.orchestrator.cli.termination import end_at_once
from ratchet.orchestrator.execution import needs
from ratchet.orchestrator.execution.command import print_warnings, run_recipe
from ratchet.orchestrator.execution.needs import StepNeeds
from ratchet.orchestrator.job_interface.clean_output import print_clean
from ratchet.orchestrator.job_interface.settings import describe_settings, write_lines
from ratchet.orchestrator.plan import Plan
from ratchet.orchestrator.reporting import report_json
from ratchet.orchestrator.reporting.formatting import pluralize
from ratchet.orchestrator.run_log import read_last_step_ids
from ratchet.orchestrator.store import Store


def execute(argv: Sequence[str]) -> int:
    """Run a command and return its exit status. Errors that the command raises are reported here."""
    store = None
    debug = "--debug" in argv
    try:
        arguments = parse(argv)
        store = arguments.store
        return COMMANDS[arguments.command](arguments) or 0
    except BaseException as error:
        if isinstance(error, SystemExit) and not find_places(error):  # `--help`
            raise
        return report_error(error, store, debug)


def _run(arguments: argparse.Namespace) -> int:
    with end_at_once():
        from ratchet.orchestrator.execution import run  # noqa: F401

    store = Store.open(arguments.store)
    own = RECIPE_COMMANDS.get(arguments.command)
    as_json = getattr(arguments, "json", False)
    with redirect_stdout(sys.stderr) if as_json else nullcontext():
        done = run_recipe(
            arguments.recipe,
            _settings(arguments),
            store,
            ["ratchet", *sys.argv[1:]],
            address=arguments.address,
            repair=arguments.repair,
            target=getattr(arguments, "target", None),
            full=getattr(arguments, "full", False),
        )
    if own and as_json and not own.answers:
        print_clean((done.run_log.folder / report_json.NAME).read_text())
    if own and own.after and done.word == "finished":
        pkgutil.resolve_name(own.after)(done.locate_results(), arguments)
    if done.interrupted:
        return 130
    if done.failures:
        return 1
    return 0


def _sweep(arguments: argparse.Namespace) -> int:
    with end_at_once():
        from ratchet.orchestrator.sweeps.command import run_sweep

    done = run_sweep(arguments, _lines(arguments), ["ratchet", *sys.argv[1:]])
    if done.interrupted:
        return 130
    if done.data.winner:
        return 0
    return 1


def _plan(arguments: argparse.Namespace) -> None:
    # bitsandbytes, which PEFT imports, would load torch's compiler: two seconds.
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    store = Store.view(arguments.store, missing_ok=True)
    found = recipe.find(arguments.recipe)
    steps, summary, _ = recipe.build(found, _settings(arguments), store)
    plan = Plan(steps, store)
    plan.check()
    print_warnings(plan, summary)
    machines = [needs.parse_gpu(text) for text in arguments.gpu] or needs.list_known_machines()
    known = needs.estimate(plan, machines)
    before = read_last_step_ids(store, found.name, plan.missing())
    if arguments.json:
        print_clean(json.dumps(plan.describe(before), indent=1))
    else:
        print_plan(plan, before, known, explain=arguments.explain)
    needs.check_fits(plan, known, machines)


def _recipes(arguments: argparse.Namespace) -> None:
    if not arguments.recipe:
        print_recipes()
    else:
        print_recipe(recipe.find(arguments.recipe))


def _lines(arguments: argparse.Namespace) -> list[str]:
    """Return the `name=value` settings: those of the file, then those of the command line, which take precedence."""
    lines = recipe.read_settings(arguments.settings) if arguments.settings else []
    if arguments.command in RECIPE_COMMANDS:
        given = {}
        for name in recipe.find(arguments.command).parameters:
            given[name] = getattr(arguments, name, None)
        if "name" in given:  # by default the model has the name of its folder
            lines.insert(0, f"name={arguments.target.name}")
        lines += write_lines({name: value for name, value in given.items() if value is not None})
    return [*lines, *arguments.set]


def _settings(arguments: argparse.Namespace) -> recipe.Settings:
    return recipe.Settings.read(_lines(arguments), arguments.seeds)


COMMANDS: dict[str, Callable[[argparse.Namespace], int | None]] = {
    "run": _run,
    **dict.fromkeys(RECIPE_COMMANDS, _run),
    "sweep": _sweep,
    "plan": _plan,
    "recipes": _recipes,
    "status": store_commands.print_status,
    "models": store_commands.print_models,
    "report": store_commands.print_report,
    "note": store_commands.add_note,
    "gc": store_commands.collect_garbage,
    "verify": store_commands.verify_store,
}
"""Command -> the function that runs it and returns the exit status (None: 0)."""


HELP = textwrap.TextWrapper(
    112, initial_indent=" " * 6, subsequent_indent=" " * 6, break_on_hyphens=False
)


def print_plan(
    plan: Plan, before: Mapping[str, str], needs: Mapping[str, StepNeeds], *, explain: bool
) -> None:
    """Print a line per step with its state (done, to run, open), and needs. before: step name -> step id in
    the last run. needs: step name -> its needs. explain: also print why steps are not done."""
    width = max(map(len, plan.steps), default=0)
    for name, planned in plan.steps.items():
        line = f"{name:<{width}}  {planned.state:<8}  {planned.step_id:<12.12}"
        if name in needs:
            line += f"  {_format_needs(needs[name])}"
        print_clean(line.rstrip())
        if explain:
            for reason in plan.explain(name, before):
                print_clean(f"    {reason}")
    missing = plan.missing()
    last = f"{len(plan.steps) - len(missing)} of {pluralize(len(plan.steps), 'step')} done; {len(missing)} would run"
    if any(planned.state == "open" for planned in plan.steps.values()):
        last += " (open: fewer if the steps before them give the same results as in an earlier run)"
    print_clean(last)
    if needs:
        print_clean(f"disk: {sum(own.needs.disk for own in needs.values()):.1f} GB")


def print_recipes() -> None:
    """Print the name and the first line of each recipe, and the names of the jobs."""
    for name in recipe.names():
        lines = recipe.find(name).doc.splitlines()
        print_clean(f"{name:<16} {lines[0] if lines else ''}")
    print_clean("\nA job is a recipe of one step:")
    print_clean(textwrap.fill(", ".join(recipe.job_names()), 120))
    print_clean("\n`ratchet recipes NAME` shows the parameters of a recipe")


def print_recipe(found: recipe.Recipe) -> None:
    """Print the documentation and the parameters of a recipe."""
    print_clean(f"{found.name}\n\n{found.doc}\n\nParameters (--set NAME=VALUE):")
    settings = describe_settings(found.function)
    name_width = max((len(s.name) for s in settings), default=0)
    type_width = max((len(s.type) for s in settings), default=0)
    for s in settings:
        default = s.default or (
            "required" if found.parameters[s.name].default is Parameter.empty else "''"
        )
        print_clean(f"  {s.name:<{name_width}}  {s.type:<{type_width}}  {default}")
        if s.help:
            print_clean(HELP.fill(s.help))
    print_clean(
        f"\n`ratchet plan {found.name} --set ...` lists the steps, and `ratchet recipes jobs/JOB` the settings of a job"
    )


def _format_needs(own: StepNeeds) -> str:
    """Format the needs of a step: workers, memory and disk."""
    needs = own.needs
    workers = own.resources.workers or 1
    parts = []
    if workers > 1:
        parts.append(f"{workers} workers")
    if needs.gpu_memory:
        parts.append(f"GPU {needs.gpu_memory:.1f} GB")
    if needs.memory:
        parts.append(f"memory {needs.memory:.1f} GB")
    if needs.disk >= 0.05:
        parts.append(f"disk {needs.disk:.1f} GB")
    return ", ".join(parts)
