"""The command line: `ratchet`, or `python -m orchestrator`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from orchestrator import recipe, screens
from orchestrator.cluster import Cluster
from orchestrator.errors import InputError
from orchestrator.failures import NO_ROOM, sentence
from orchestrator.journal import last_ids
from orchestrator.plan import Plan
from orchestrator.run import Run, begin
from orchestrator.secret import holds_secret, is_secret_variable
from orchestrator.store import Store

DESCRIPTION = """\
Runs recipes: iterations of embed, mine, finetune and evaluate, as steps whose results are kept by their content.
Nothing is computed twice; a run that was killed goes on when the same command is given again.
"""

EXAMPLES = """\
first steps:
  ratchet recipes                      what there is to run
  ratchet recipes quickstart           its parameters
  ratchet plan quickstart --explain    what would run, and why
  ratchet run quickstart               run it; stop it whenever you like; give the command again to go on
  ratchet report                       where the newest run's report is

settings, one grammar everywhere:
  --set iterations=2                                a parameter of the recipe
  --set finetune_embedder.learning_rate=2e-4        a setting of all steps of that job
  --set 'iter*/mine.window=2,100'                   a setting of the steps whose name matches
  --set embed.workers=4                             a resource: changes speed, never results
"""

SWEEP = """\
  ratchet sweep quickstart --space tune_spaces/embedder.yaml --metric map@25 --trials 8
  ratchet sweep quickstart --space tune_spaces/embedder.yaml --metric map@25 --trials 16     goes on: 8 more
  ratchet sweep gsm8k --space tune_spaces/sft.yaml --metric accuracy --set data=PATH --seeds 3 --promote gsm8k

A space is a YAML file of lines such as `finetune_embedder.learning_rate: loguniform(1e-5, 1e-3)`. Trials run as far as
the step that decides: the last one that the space changes and that trains by the metric, by its held-out rows; name
another with --metric STEP.NAME. What trials have in common is computed once. Killed, the same command goes on.
"""

SUBMIT = """\
  ray up cluster.yaml; ray dashboard cluster.yaml
  ratchet submit misconceptions --store /mnt/ratchet/store --address http://127.0.0.1:8265 --set data=/mnt/ratchet/eedi

The program is uploaded (listed first; never data, results or secrets), and `ratchet run` is started on the cluster.
Paths in settings are the cluster's. The same command again follows the job that runs; this end may be lost at any time.
The exit status is the job's.
"""

SET_HELP = "a recipe's parameter (name=value) or a step's setting (steps.field=value); may be given often"


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status: 0 done, 1 a step failed, 2 bad input, 130 interrupted."""
    arguments = _parser().parse_args(argv)
    try:
        return arguments.command(arguments)
    except KeyboardInterrupt:
        screens.say("stopped; give the same command again to go on")
        return 130
    except Exception as error:
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            error.filename = error.filename or arguments.store
            screens.complain(sentence(error))
            return 1
        if not getattr(error, "permanent", False):
            raise
        screens.complain(str(error))
        return 2


def _run(arguments: argparse.Namespace) -> int:
    store = Store.open(arguments.store)
    found = recipe.find(arguments.recipe)
    steps, summary, parameters = recipe.build(found, recipe.Settings.read(_lines(arguments)))
    plan, journal = begin(found, steps, store, parameters, ["ratchet", *sys.argv[1:]], arguments.repair)
    cluster = Cluster(arguments.address)
    try:
        with screens.live(plan, found.name, journal.run_id) as view:
            outcome = Run(found, summary, plan, cluster, journal, view).carry_out()
        screens.write_report(journal, outcome)
        screens.show_outcome(journal, outcome)
        store.publish(journal.folder)
    finally:
        cluster.stop()
    return 130 if outcome.interrupted else 1 if outcome.failures else 0


def _sweep(arguments: argparse.Namespace) -> int:
    from orchestrator.sweep.command import sweep

    return sweep(arguments, _lines(arguments), ["ratchet", *sys.argv[1:]])


def _submit(arguments: argparse.Namespace) -> int:
    from orchestrator.submit import submit

    if not arguments.store:
        raise InputError("submit --store: not given; expected a folder that all machines of the cluster share")
    recipe_file = Path(arguments.recipe) if arguments.recipe.endswith(".py") else None
    files = [path for path in (recipe_file, arguments.settings) if path is not None]
    options = ["--store", arguments.store, *(part for line in arguments.set for part in ("--set", line))]
    if arguments.settings is not None:
        options += ["--settings", arguments.settings.name]
    missing = [name for name in arguments.env if name not in os.environ]
    if missing:
        raise InputError(f"submit --env {missing[0]}: not set here; expected a variable to hand on; export it first")
    for name in arguments.env:
        if is_secret_variable(name) or holds_secret(os.environ[name]):
            raise InputError(
                f"submit --env {name}: looks like a secret; expected none, since who may see the cluster's jobs sees"
                " their variables; put it into a file on the cluster, or give its machines a role (docs/cluster.md)"
            )
    recipe.find(arguments.recipe)
    return submit(
        f"./{recipe_file.name}" if recipe_file else arguments.recipe,
        options,
        files,
        address=arguments.address,
        environment={name: os.environ[name] for name in arguments.env},
        wait=not arguments.no_wait,
        say=screens.say,
    )


def _plan(arguments: argparse.Namespace) -> int:
    store = Store.open(arguments.store)
    found = recipe.find(arguments.recipe)
    steps, _, _ = recipe.build(found, recipe.Settings.read(_lines(arguments)))
    plan = Plan(steps, store)
    plan.check()
    screens.show_plan(plan, last_ids(store, found.name) if arguments.explain else None)
    return 0


def _recipes(arguments: argparse.Namespace) -> int:
    screens.show_recipes(
        [recipe.find(name) for name in ([arguments.recipe] if arguments.recipe else recipe.names())],
        whole=bool(arguments.recipe),
    )
    return 0


def _status(arguments: argparse.Namespace) -> int:
    screens.show_status(Store.open(arguments.store), arguments.run)
    return 0


def _report(arguments: argparse.Namespace) -> int:
    screens.show_report(Store.open(arguments.store), arguments.run)
    return 0


def _gc(arguments: argparse.Namespace) -> int:
    screens.collect(
        Store.open(arguments.store), keep=arguments.keep, grace=arguments.grace * 3600, delete=arguments.yes
    )
    return 0


def _lines(arguments: argparse.Namespace) -> list[str]:
    """`name=value`: of the file, then of the command, which has the last word."""
    return [*(recipe.read_settings(arguments.settings) if arguments.settings else ()), *arguments.set]


def _parser() -> argparse.ArgumentParser:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("ratchet", description=DESCRIPTION, epilog=EXAMPLES, formatter_class=formatter)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    default_store = os.environ.get("RATCHET_STORE", ".ratchet")

    def command(name: str, run: object, help: str, epilog: str = "") -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=help, description=help, epilog=epilog, formatter_class=formatter)
        sub.set_defaults(command=run)
        sub.add_argument(
            "--store",
            default=default_store,
            metavar="DIR",
            help="where results are kept (default: RATCHET_STORE, or .ratchet here): a folder, or s3://BUCKET/PREFIX, gs://"
            " or az://, with copies and work in progress in the folder RATCHET_CACHE",
        )
        return sub

    def with_recipe(sub: argparse.ArgumentParser) -> argparse.ArgumentParser:
        sub.add_argument("recipe", help="a name from `ratchet recipes`, or the path of a Python file")
        sub.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help=SET_HELP)
        sub.add_argument(
            "--settings", type=Path, metavar="FILE", help="a YAML file of such settings, as a sweep's winner.yaml"
        )
        return sub

    sub = with_recipe(command("run", _run, "run a recipe, or go on with it", EXAMPLES))
    sub.add_argument("--address", help="a running Ray cluster (default: RAY_ADDRESS, or Ray on this machine)")
    sub.add_argument(
        "--repair", action="store_true", help="move results that were damaged on disk aside, and compute them again"
    )

    sub = with_recipe(command("sweep", _sweep, "find good settings: many trials over one store", SWEEP))
    sub.add_argument("--space", type=Path, required=True, metavar="FILE", help="what to try: tune_spaces/*.yaml")
    sub.add_argument("--metric", required=True, help="what decides, such as map@25; or STEP.NAME")
    sub.add_argument("--trials", type=int, default=16, help="how many in all, the recipe's defaults first (default 16)")
    sub.add_argument("--searcher", choices=["random", "optuna"], default="random", help="(default random)")
    sub.add_argument(
        "--stopping", choices=["asha", "none"], default="asha", help="end bad trials at a checkpoint (default asha)"
    )
    sub.add_argument("--grace", type=int, default=1, help="checkpoints that every trial reaches (default 1)")
    sub.add_argument("--reduction", type=int, default=3, help="one of so many trials goes on (default 3)")
    sub.add_argument("--seeds", type=int, default=1, help="runs of each trial; their mean decides (default 1)")
    sub.add_argument("--seed", type=int, default=0, help="of what is drawn (default 0)")
    sub.add_argument("--at-once", type=int, help="trials at once (default: as many as the cluster can place)")
    sub.add_argument("--promote", metavar="NAME", help="keep the winner's model as promoted/NAME in the store")
    sub.add_argument("--address", help="a running Ray cluster (default: RAY_ADDRESS, or Ray on this machine)")

    sub = with_recipe(command("submit", _submit, "run a recipe on a cluster, through its Jobs API", SUBMIT))
    sub.set_defaults(store=os.environ.get("RATCHET_STORE"))
    sub.add_argument("--address", help="the cluster's dashboard, as http://127.0.0.1:8265 (default: RAY_ADDRESS)")
    sub.add_argument("--no-wait", action="store_true", help="start it, and do not follow its log")
    sub.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME",
        help="a variable to hand on, as WANDB_PROJECT, but no secret; may be given often",
    )

    sub = with_recipe(command("plan", _plan, "show what a run would do; nothing is started", EXAMPLES))
    sub.add_argument(
        "--explain",
        action="store_true",
        help="for each step that would run: which setting, input or function changed since the last run",
    )

    sub = command("recipes", _recipes, "list the recipes, or one recipe's parameters")
    sub.add_argument("recipe", nargs="?", help="show this one's parameters")

    sub = command("status", _status, "the runs in the store, and which steps are being worked on by whom")
    sub.add_argument("run", nargs="?", help="a run's id, or its beginning: show its steps")

    sub = command("report", _report, "where a run's report is (the newest run's, if none is named)")
    sub.add_argument("run", nargs="?", help="a run's id, or its beginning")

    sub = command(
        "gc",
        _gc,
        "remove results that no kept run needs; shows them first, removes them with --yes",
        "Results of the newest --keep runs, of runs that hold a file named `pinned`, and of steps that are being\n"
        "worked on are never removed; neither is anything younger than the grace period. In a bucket a step is\n"
        "withdrawn first, and what it made goes with the first gc after another grace period.",
    )
    sub.add_argument(
        "--keep", type=int, default=5, metavar="N", help="keep the results of the newest N runs (default 5)"
    )
    sub.add_argument("--grace", type=float, default=1.0, metavar="HOURS", help="keep what is younger (default 1)")
    sub.add_argument("--yes", action="store_true", help="really remove")
    return parser


if __name__ == "__main__":
    sys.exit(main())
