"""The options of the commands, and their help."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from ratchet.orchestrator.cli.arguments import Parser, number
from ratchet.orchestrator.cli.recipe_commands import RECIPE_COMMANDS
from ratchet.orchestrator.recipe import find_settings
from ratchet.orchestrator.version import VERSION

DESCRIPTION = """\
Run recipes: iterations of embedding, mining, finetuning and evaluation.

A recipe is a Python function that returns steps. Ratchet plans the steps, runs them on Ray, and stores every result
under a fingerprint of its code, settings and inputs. A step whose result is in the store is not computed again. An
interrupted run continues when the same command is given again.
"""

EXAMPLES = """\
first steps:
  ratchet recipes                      list the recipes
  ratchet recipes quickstart           show the parameters and the steps of a recipe
  ratchet plan quickstart --explain    show which steps would run, and why
  ratchet run quickstart               run it; after an interruption, the same command continues
  ratchet report                       show the report of the newest run

`ratchet COMMAND --help` explains the options of a command. The Tab key completes commands, options, recipes, settings,
runs and models after this line in bash (for other shells see `register-python-argcomplete --help`):
  eval "$(register-python-argcomplete ratchet)"
"""

SETTINGS = """\
settings:
  --set iterations=2                                a parameter of the recipe
  --set finetune_embedder.learning_rate=2e-4        a setting of every step of a job
  --set iter0/mine.window=2,100                     a setting of one step
  --set 'iter*/mine.window=2,100'                   a setting of all steps whose name matches the pattern
  --set embed.workers=4                             a resource: changes the speed, never the results

Commas separate the items of a list. `none` is None. `ratchet recipes NAME` lists parameters, steps and jobs.
"""

RUN = """\
examples:
  ratchet run quickstart
  ratchet run misconceptions --set data=PATH --set base=MODEL --set iterations=2
  ratchet run ./my_recipe.py --settings settings.yaml
  ratchet run jobs/embed --set model=MODEL --set texts=FOLDER --out vectors      a single job

A failed step does not stop the steps that do not depend on it. The exit status is 0 if all steps are done, 1 if a step
failed, 2 for wrong input, 130 if interrupted. The report is written to STORE/runs/RUN/report.html.

"""

PLAN = """\
Each step is done (its result is in the store and would be reused), to run, or open: it depends on a step that would
run, and is reused if that step gives the same result as in an earlier run.

For the steps of models it shows what they need at most: memory of each GPU, memory of the host per worker, disk, and
the hours that the operations take on the GPUs. Models below 0.5 GB are left out where there are no GPUs. A step that
needs more memory than the machines have is refused, with the settings that make it fit. `last time` is how long the
step took in the last run, with other settings or inputs.

"""

SWEEP = """\
examples:
  ratchet sweep quickstart --space tune_spaces/embedder.yaml --metric map@25 --trials 8
  ratchet sweep quickstart --space tune_spaces/embedder.yaml --metric map@25 --trials 16     8 more trials
  ratchet sweep gsm8k --space tune_spaces/sft.yaml --metric accuracy --set data=PATH --seeds 3 --promote gsm8k

A search space is a YAML file of lines such as `finetune_embedder.learning_rate: loguniform(1e-5, 1e-3)`. The
distributions are uniform, loguniform, randint, choice and grid. All trials have a plain value, unless --set is given.

The first trial has the recipe's defaults. Trials are compared by the held-out metric of the last training step that the
space changes; `--metric STEP.NAME` selects a metric of another step. Steps after the deciding step are not run. Steps
that trials have in common are computed once. An interrupted sweep continues when the same command is given again.

"""

SUBMIT = """\
examples:
  ray up cluster.yaml; ray dashboard cluster.yaml
  ratchet submit misconceptions --store /mnt/ratchet/store --address http://127.0.0.1:8265 --set data=/mnt/ratchet/eedi

The program is uploaded, without data, results and secrets, and `ratchet run` is started on the cluster. Paths in
settings are paths on the cluster. The same command again follows the running job; the connection may be lost at any
time. The exit status is that of the job.

"""

MODELS = """\
A model is named RUN:NAME, where NAME is `embedder`, `reranker` or the like for those that the run ended with, which are
marked as best, and a step for others. RUN may be the beginning of a run's id, and stands alone for the first of its
best models. These names are accepted wherever a recipe takes a model:
  ratchet models
  ratchet run retriever --set data=PATH --set base=20261124-2311:embedder

"""

PROMOTE = """\
examples:
  ratchet promote 20261124-2311:embedder eedi
  ratchet promote 20261201-0815:embedder eedi --if-better
  ratchet run retriever --set data=PATH --set base=eedi

The model is exported with its card (see `ratchet export`), and promoted/NAME in the store links to the result. `gc`
keeps it. NAME.json beside it lists what the name stood for before. The name is accepted wherever a recipe takes a
model.

"""

DIFF = """\
Parameters, numbers of the final tables, and of each step what gives it another identity: settings, inputs, functions of
its code, libraries. A difference of numbers that have intervals is called more than noise if it is larger than the root
of the sum of their squares: the interval of a difference of independent numbers.
"""

GC = """\
These are never removed: results of the newest --keep runs that finished and of every run since, of the newest --keep
sweeps, of runs whose folder holds a file named `pinned`, of runs whose driver may be running, of promoted models, and
anything younger than --grace-period. While the steps of a run are unknown, since it is starting or its plan.json cannot
be read, all steps are kept, and `gc` says so. A driver on another machine counts as lost after a day without a sign of
life. In object storage the result of a step is given up first; its files are removed by the first `gc` after another
grace period.
"""

VERIFY = """\
examples:
  ratchet verify                 read every byte of every result
  ratchet verify --sample 0.05   check all names and sizes, and the content of 5% of the files

The exit status is 0 if all results are as they were stored, 1 if one is damaged. Nothing is changed. In object
storage, the content of files is downloaded and not kept.
"""


# A table of options reads better with one option on a few lines.
# fmt: off
def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line. `command` of the result is the command's name. Raises InputError."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = Parser("ratchet", description=DESCRIPTION, epilog=EXAMPLES, formatter_class=formatter)
    parser.add_argument("--version", action="version", version=VERSION)
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command", title="commands")

    def add_command(name: str, help: str, description: str = "", epilog: str = "") -> argparse.ArgumentParser:
        text = f"{help[0].upper()}{help[1:]}. {description}".strip()
        sub = commands.add_parser(name, help=help, description=text, epilog=epilog, formatter_class=formatter)
        sub.add_argument("--store", default=os.environ.get("RATCHET_STORE", ".ratchet"), metavar="DIR",
            help="where results are stored: a folder, or s3://BUCKET/PREFIX, gs:// or az:// (default: the environment"
            " variable RATCHET_STORE, else .ratchet in the working directory). For object storage, copies and work in"
            " progress are in the folder that the environment variable RATCHET_CACHE names")
        sub.add_argument("--debug", action="store_true", help="after an error, print the traceback")
        return sub

    def add_recipe(sub: argparse.ArgumentParser, name: str = "") -> argparse.ArgumentParser:
        if name:
            sub.set_defaults(recipe=name)
        else:
            sub.add_argument("recipe",
                help="name from `ratchet recipes`, or path of a Python file with a recipe or a job in it")
        sub.add_argument("--set", action="append", default=[], metavar="NAME=VALUE",
            help="set a parameter of the recipe (NAME=VALUE), a setting of all steps of a job (JOB.SETTING=VALUE), or a"
            " setting of the steps that match a pattern (STEP.SETTING=VALUE); may be repeated")
        sub.add_argument("--settings", type=find_settings, metavar="FILE",
            help="YAML file of settings, one `NAME: VALUE` per line, such as the winner.yaml of a sweep, or"
            " published/NAME, those of a published run; --set takes precedence")
        return sub

    def add_seeds(sub: argparse.ArgumentParser) -> argparse.ArgumentParser:
        sub.add_argument("--seeds", type=number(int, 1), default=1, metavar="N",
            help="repeat the recipe with N values of its parameter seed, in one table of means and standard deviations"
            " (default: 1)")
        return sub

    sub = add_command("run", "run a recipe, or continue a run", epilog=RUN + SETTINGS)
    _add_run(add_seeds(add_recipe(sub)))
    sub.add_argument("--out", type=Path, dest="target", metavar="DIR",
        help="copy the result to a new folder; jobs have one, and recipes that write a model, vectors or an index")
    sub = add_command("sweep", "search for good settings of a recipe with Ray Tune", epilog=SWEEP + SETTINGS)
    _add_sweep(add_recipe(sub))
    sub = add_command("submit", "run a recipe on a cluster, as a Ray job", epilog=SUBMIT + SETTINGS)
    _add_submit(add_seeds(add_recipe(sub)))
    sub = add_command("plan", "show which steps would run; start nothing", epilog=PLAN + SETTINGS)
    add_seeds(add_recipe(sub))
    sub.add_argument("--explain", action="store_true",
        help="for each step that would run, show which setting, input or function changed since the last run")
    sub.add_argument("--json", action="store_true", help="print step, job, state, id and reasons of each step as JSON")
    sub.add_argument("--gpu", action="append", default=[], metavar="NAME:GB[:COUNT]",
        help="plan for a machine with COUNT of these GPUs (default 1), such as H100:80:8; may be repeated (default: the"
        " machines of the file RATCHET_CLUSTER, else this machine)")

    sub = add_command("recipes", "list the recipes, or show one",
        "With a name: the recipe's documentation, its parameters with types and defaults, and its steps by job.")
    sub.add_argument("recipe", nargs="?", help="name of a recipe, or path of a Python file; without it, list all")
    sub.add_argument("--json", action="store_true", help="print the JSON Schema of the parameters of the recipe")

    sub = add_command("status", "show the runs in the store, the sweeps, and the steps that are running")
    sub.add_argument("run", nargs="?", help="id of a run, or its beginning: show the steps of this run")
    sub.add_argument("--json", action="store_true", help="print the runs, or the steps of the run, as JSON")
    sub.add_argument("--follow", action="store_true",
        help="show the progress of the run (default: the newest) until it ends, from any machine that reads the store;"
        " the exit status is that of the run")
    sub.add_argument("--log", action="store_true",
        help="show which results were stored (commit), given up as damaged (withdraw), given a name (promote) and"
        " removed (collect), when and by whom, the newest last")
    sub.add_argument("--limit", type=number(int, 0), default=50, metavar="N",
        help="with --log: show the newest N records (default: 50)")

    sub = add_command("models", "list the models that runs made, with their metrics", epilog=MODELS)
    sub.add_argument("run", nargs="?", default="", help="id of a run, or its beginning (default: all runs)")
    sub.add_argument("--json", action="store_true", help="print all that is known of each model, as JSON")

    for name, own in RECIPE_COMMANDS.items():
        sub = add_command(name, own.help, epilog=own.examples)
        own.add_arguments(sub)
        said = "what it answers as JSON" if own.answers else "report.json of the run"
        sub.add_argument("--json", action="store_true", help=f"print {said} alone, and the progress as errors")
        _add_run(add_recipe(sub, name))
        sub.set_defaults(seeds=1)

    sub = add_command("promote", "give a model of a run a name that stays", epilog=PROMOTE)
    sub.add_argument("model", metavar="MODEL", help="a model that `ratchet models` lists")
    sub.add_argument("name", metavar="NAME", help="letters, digits, - and _, a letter first")
    sub.add_argument("--if-better", action="store_true",
        help="refuse a model that is no better than the one that has the name, on the same data")
    sub.add_argument("--license", default="unknown", help="the license in the model card (default: unknown)")

    sub = add_command("report", "show the report of a run, and the path of report.html")
    sub.add_argument("run", nargs="?", help="id of a run, or its beginning (default: the newest run)")

    sub = add_command("diff", "show what differs between two runs", epilog=DIFF)
    sub.add_argument("before", metavar="RUN", help="id of a run, or its beginning")
    sub.add_argument("after", metavar="RUN", help="id of another run, or its beginning")
    sub.add_argument("--json", action="store_true", help="print all differences as JSON")
    sub.add_argument("--html", type=Path, metavar="FILE", help="also write them as a page")

    _add_gc(add_command("gc", "list results that no kept run needs, and remove them with --yes", epilog=GC))
    sub = add_command("verify", "check that stored results are unchanged", epilog=VERIFY)
    sub.add_argument("--sample", type=number(float, 0, 1), default=1.0, metavar="FRACTION",
        help="fraction of the files, drawn at random, whose content is read; names and sizes are always checked"
        " (default: 1)")
    if "_ARGCOMPLETE" in os.environ:  # a shell asks for completions
        from ratchet.orchestrator.cli.completion import complete

        complete(parser)
    return parser.parse(argv)


def _add_address(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--address",
        help="address of a running Ray cluster (default: the environment variable RAY_ADDRESS, else start Ray on this"
        " machine)")


def _add_notify(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--notify", metavar="URL",
        help="post JSON to this URL when a step fails and when the run ends; its `text` is a sentence, as chat services"
        " expect (default: the environment variable RATCHET_NOTIFY; docs/cluster.md lists the fields)")


def _add_run(sub: argparse.ArgumentParser) -> None:
    _add_address(sub)
    _add_notify(sub)
    sub.add_argument("--repair", action="store_true",
        help="move stored results that are damaged on disk aside and compute them again (default: stop with an error)")


def _add_sweep(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--space", type=Path, required=True, metavar="FILE", help="YAML file of the search space, as in tune_spaces/")
    sub.add_argument(
        "--metric", required=True, help="metric that decides, such as map@25, or STEP.NAME for the metric of a step")
    sub.add_argument("--trials", type=number(int, 1), default=16, metavar="N",
        help="number of trials, including the defaults (default: 16)")
    sub.add_argument("--searcher", choices=["random", "optuna"], default="random",
        help="search algorithm: random (also enumerates grids), or optuna (TPE) (default: random)")
    sub.add_argument("--stopping", choices=["asha", "none"], default="asha",
        help="early stopping: asha ends bad trials at a checkpoint, none runs all to the end (default: asha)")
    sub.add_argument("--grace-period", type=number(int, 1), default=1, metavar="N",
        help="ASHA grace period: checkpoints that every trial reaches (default: 1)")
    sub.add_argument("--reduction-factor", type=number(int, 2), default=3, metavar="N",
        help="ASHA reduction factor (default: 3)")
    sub.add_argument("--seeds", type=number(int, 1), default=1, metavar="N",
        help="training seeds per trial; their mean decides. With 2 or more, the result says whether the winner beats"
        " the defaults by more than noise (default: 1)")
    sub.add_argument("--seed", type=number(int, 0), default=0, help="random seed of the search (default: 0)")
    sub.add_argument("--max-concurrent", type=number(int, 1), metavar="N",
        help="maximum number of trials at once (default: as many as the cluster can place)")
    sub.add_argument(
        "--promote", metavar="NAME", help="link the winner's model as promoted/NAME in the store; gc keeps it")
    _add_address(sub)


def _add_submit(sub: argparse.ArgumentParser) -> None:
    sub.set_defaults(store=os.environ.get("RATCHET_STORE"))
    sub.add_argument("--address",
        help="address of the cluster's dashboard, such as http://127.0.0.1:8265 (default: the environment variable"
        " RAY_ADDRESS)")
    _add_notify(sub)
    sub.add_argument("--no-wait", action="store_true", help="return after the job is started; do not follow its log")
    sub.add_argument("--env", action="append", default=[], metavar="NAME",
        help="environment variable to pass on, such as WANDB_PROJECT; secrets are refused; may be repeated")


def _add_gc(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--keep", type=number(int, 0), default=5, metavar="N",
        help="keep the results of the newest N finished runs, and of every run since (default: 5)")
    sub.add_argument("--grace-period", type=number(float, 0), default=1.0, metavar="HOURS",
        help="keep everything that was made or used in the last HOURS hours, at least the last minute (default: 1)")
    sub.add_argument("--yes", action="store_true", help="remove them (default: only list them)")
# fmt: on
