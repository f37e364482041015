"""The output of `ratchet plan` and `ratchet recipes`."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from inspect import Parameter

from rich.text import Text

from ratchet.orchestrator.execution.needs import StepNeeds
from ratchet.orchestrator.job_interface.clean_output import CleanConsole, print_clean
from ratchet.orchestrator.job_interface.settings import describe_settings
from ratchet.orchestrator.plan import Plan
from ratchet.orchestrator.recipe import Recipe
from ratchet.orchestrator.reporting.formatting import pluralize
from ratchet.orchestrator.step import Step

HELP = textwrap.TextWrapper(
    112, initial_indent=" " * 6, subsequent_indent=" " * 6, break_on_hyphens=False
)


def print_plan(
    plan: Plan, before: Mapping[str, str], needs: Mapping[str, StepNeeds], *, explain: bool
) -> None:
    """Print a line per step with its state (done, to run, open), and needs. before: step name -> step id in
    the last run. needs: step name -> its needs. explain: also print why steps are not done."""
    console = CleanConsole(soft_wrap=True, highlight=False)
    colours = {"done": "green", "to run": "yellow", "open": "dim"}
    width = max(map(len, plan.steps), default=0)
    for name, planned in plan.steps.items():
        line = Text(f"{name:<{width}}  ")
        line.append(f"{planned.state:<8}", colours[planned.state])
        line.append(f"  {planned.step_id:<12.12}")
        if name in needs:
            line.append(f"  {_format_needs(needs[name])}")
        line.rstrip()
        console.print(line)
        if explain:
            for reason in plan.explain(name, before):
                console.print(Text(f"    {reason}", style="dim"))
    missing = plan.missing()
    last = f"{len(plan.steps) - len(missing)} of {pluralize(len(plan.steps), 'step')} done; {len(missing)} would run"
    if any(planned.state == "open" for planned in plan.steps.values()):
        last += " (open: fewer if the steps before them give the same results as in an earlier run)"
    console.print(last)
    if needs:
        console.print(f"disk: {sum(own.needs.disk for own in needs.values()):.1f} GB")


def print_recipes(recipes: Sequence[Recipe], jobs: Sequence[str]) -> None:
    """Print the name and the first line of each recipe, and the names of the jobs."""
    for recipe in recipes:
        lines = recipe.doc.splitlines()
        print_clean(f"{recipe.name:<16} {lines[0] if lines else ''}")
    print_clean("\nA job is a recipe of one step:")
    print_clean(textwrap.fill(", ".join(jobs), 120))
    print_clean("\n`ratchet recipes NAME` shows the parameters and the steps of a recipe")


def print_recipe(recipe: Recipe, steps: Sequence[Step]) -> None:
    """Print the documentation and the parameters of a recipe, and `steps` by job if there are any."""
    print_clean(f"{recipe.name}\n\n{recipe.doc}\n\nParameters (--set NAME=VALUE):")
    settings = describe_settings(recipe.function)
    name_width, type_width = (
        max((len(getattr(s, part)) for s in settings), default=0) for part in ("name", "type")
    )
    for s in settings:
        default = s.default or (
            "required" if recipe.parameters[s.name].default is Parameter.empty else "''"
        )
        print_clean(f"  {s.name:<{name_width}}  {s.type:<{type_width}}  {default}")
        if s.help:
            print_clean(HELP.fill(s.help))
    if not steps:
        print_clean(f"\n`ratchet plan {recipe.name} --set ...` lists the steps")
        return
    jobs: dict[str, list[str]] = {}
    for step in steps:
        jobs.setdefault(step.job.name, []).append(step.name)
    width = max(map(len, jobs))
    print_clean("\nSteps by job (--set JOB.SETTING=VALUE, or STEP.SETTING=VALUE for one step):")
    for job, names in jobs.items():
        print_clean(f"  {job:<{width}}  {', '.join(names)}")
    print_clean("\n`ratchet recipes jobs/JOB` shows the settings of a job")


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
