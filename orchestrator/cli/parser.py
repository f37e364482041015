"""The options of the commands, and their help."""

import argparse
import difflib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from ratchet.errors import InputError
from ratchet.orchestrator import recipe
from ratchet.orchestrator.cli.recipe_commands import RECIPE_COMMANDS, number
from ratchet.orchestrator.job_interface.clean_output import print_clean
from ratchet.orchestrator.job_interface.settings import suggest
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
  ratchet recipes quickstart           show the parameters of a recipe
  ratchet plan quickstart --explain    show which steps would run, and why
  ratchet run quickstart               run it; after an interruption, the same command continues
  ratchet report                       show the report of the newest run

`ratchet COMMAND --help` explains the options of a command.
"""

SETTINGS = """\
settings:
  --set iterations=2                                a parameter of the recipe
  --set finetune_embedder.learning_rate=2e-4        a setting of every step of a job
  --set iter0/mine.window=2,100                     a setting of one step
  --set 'iter*/mine.window=2,100'                   a setting of all steps whose name matches the pattern
  --set embed.workers=4                             a resource: changes the speed, never the results

Commas separate the items of a list. `none` means None. `ratchet recipes NAME` lists
the parameters, and `ratchet plan NAME` the steps.
"""

RUN = """\
examples:
  ratchet run quickstart
  ratchet run misconceptions --set data=PATH --set base=MODEL --set iterations=2
  ratchet run ./my_recipe.py --settings settings.yaml
  ratchet run jobs/embed --set model=MODEL --set texts=FOLDER --out vectors      a single job

If a step fails, the steps that do not depend on it still run. The exit status is 0 if all steps are done, 1 if a step
failed, 2 for wrong input, 130 after ctrl-C, 143 after SIGTERM. The report is STORE/runs/RUN/report.html.

"""

PLAN = """\
A step is `done` (its result is in the store and is reused), `to run`, or `open`: it depends on a step that would run.
An open step is reused if the outputs of the steps before it are the same as in an earlier run.

For steps that run a model, the plan shows upper bounds: memory per GPU, host memory per worker, and disk space. Without
GPUs, models below 0.5 GB are not estimated. If a step needs more memory than the machines have, the command fails and
names settings with which the step fits.

"""

SWEEP = """\
examples:
  ratchet sweep quickstart --space tune_spaces/embedder.yaml --metric map@25 --trials 8
  ratchet sweep quickstart --space tune_spaces/embedder.yaml --metric map@25 --trials 16     the same 8, and 8 more
  ratchet sweep gsm8k --space tune_spaces/sft.yaml --metric accuracy --set data=PATH --seeds 3

A search space is a YAML file of lines such as `finetune_embedder.learning_rate: loguniform(1e-5, 1e-3)`. The
distributions are uniform, loguniform, randint, choice and grid. A plain value holds for all trials; --set overrides it.

The first trial has the recipe's defaults. Trials are compared by the held-out metric of the last training step that the
space changes; `--metric STEP.NAME` selects a metric of another step. Steps after that step are not run. Steps that
trials have in common are computed once. Given again, the command runs all trials; their finished steps cost nothing.

"""

MODELS = """\
A model is named RUN:NAME. RUN is the id of a run, or its beginning. For the models that the run ended with, marked as
best, NAME is `embedder`, `reranker` or the like; for other models it is the name of the step. RUN alone means the first
of the best models. Recipes accept these names wherever they take a model:
  ratchet models
  ratchet run retriever --set data=PATH --set base=20261124-2311:embedder

"""

NOTE = """\
  ratchet note 20261124-2311 --row "iteration 1" lb=0.505 "early stop, epoch 3"
  ratchet note 20261124-2311 "first run with all questions"

A later number of the same name, and later words for the same row, replace earlier ones. Results do not depend on notes.
"""

GC = """\
`gc` always keeps the results of the newest --keep finished runs, of all runs after the oldest of these, of the newest
--keep sweeps, of runs whose folder holds a file named `pinned`, and of runs that may still be running. It also keeps
everything that is younger than --grace-period. If the steps of a run are unknown, because the run
is starting or its plan.json cannot be read, `gc` removes nothing and says so. A process on another machine counts as
lost a day after its last heartbeat. A run whose result is removed all the same computes it again.
"""

VERIFY = """\
The exit status is 0 if all results are as they were stored, 1 if one is damaged. Nothing in the store is changed. With
object storage, the files are downloaded for the check and not kept.
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
            " variable RATCHET_STORE, else .ratchet in the working directory). With object storage, the environment"
            " variable RATCHET_CACHE names the folder for copies and work in progress (default: ~/.cache/ratchet)")
        sub.add_argument("--debug", action="store_true", help="after an error, print the traceback")
        return sub

    def add_recipe(sub: argparse.ArgumentParser, name: str = "") -> argparse.ArgumentParser:
        if name:
            sub.set_defaults(recipe=name)
        else:
            sub.add_argument("recipe",
                help="name of a recipe or job (see `ratchet recipes`), or path of a Python file that defines one")
        sub.add_argument("--set", action="append", default=[], metavar="NAME=VALUE",
            help="set a parameter of the recipe (NAME=VALUE), a setting of all steps of a job (JOB.SETTING=VALUE), or a"
            " setting of the steps that match a pattern (STEP.SETTING=VALUE); may be repeated")
        sub.add_argument("--settings", type=find_settings, metavar="FILE",
            help="YAML file of settings, one `NAME: VALUE` per line, such as winner.yaml of a sweep; or published/NAME"
            " for the settings of a published run; --set takes precedence")
        return sub

    def add_seeds(sub: argparse.ArgumentParser) -> argparse.ArgumentParser:
        sub.add_argument("--seeds", type=number(int, 1), default=1, metavar="N",
            help="run the recipe with N seeds (its parameter seed, seed + 1, ...) and show the means and standard"
            " deviations in one table (default: 1)")
        return sub

    sub = add_command("run", "run a recipe, or continue a run", epilog=RUN + SETTINGS)
    _add_run(add_seeds(add_recipe(sub)))
    sub.add_argument("--out", type=Path, dest="target", metavar="DIR",
        help="new folder to copy the result to; for jobs, and for recipes that write a model, vectors or an index")
    sub.add_argument("--full", action="store_true",
        help="print all rows of the table, with those of baselines such as BM25 (default: the main ones)")
    sub = add_command("sweep", "search for good settings of a recipe with Ray Tune", epilog=SWEEP + SETTINGS)
    _add_sweep(add_recipe(sub))
    sub = add_command("plan", "show which steps would run; start nothing", epilog=PLAN + SETTINGS)
    add_seeds(add_recipe(sub))
    sub.add_argument("--explain", action="store_true",
        help="for each step that would run, show which setting, input or module changed since the last run")
    sub.add_argument("--json", action="store_true", help="print step, job, state, id and reasons of each step as JSON")
    sub.add_argument("--gpu", action="append", default=[], metavar="NAME:GB[:COUNT]",
        help="plan for a machine with COUNT GPUs (default 1) of this type and memory, as in H100:80:8; may be repeated"
        " (default: the machines in the file that RATCHET_CLUSTER names, else this machine)")

    sub = add_command("recipes", "list the recipes, or show one",
        "With a name: the recipe's documentation, and its parameters with types and defaults.")
    sub.add_argument("recipe", nargs="?", help="name of a recipe, or path of a Python file; without it, list all")

    sub = add_command("status", "show the runs and the sweeps in the store")
    sub.add_argument("run", nargs="?", help="id of a run, or its beginning: show the steps of this run")
    sub.add_argument("--json", action="store_true", help="print the runs, or the steps of the run, as JSON")

    sub = add_command("models", "list the models that runs made, with their metrics", epilog=MODELS)
    sub.add_argument("run", nargs="?", default="", help="id of a run, or its beginning (default: all runs)")
    sub.add_argument("--json", action="store_true", help="print all that is known of each model, as JSON")

    for name, own in RECIPE_COMMANDS.items():
        sub = add_command(name, own.help, epilog=own.examples)
        own.add_arguments(sub)
        said = "the answers as JSON" if own.answers else "report.json of the run"
        sub.add_argument("--json", action="store_true", help=f"print only {said}; progress goes to standard error")
        _add_run(add_recipe(sub, name))
        sub.set_defaults(seeds=1)

    sub = add_command("report", "show the report of a run, and the path of report.html")
    sub.add_argument("run", nargs="?", default="", help="id of a run, or its beginning (default: the newest run)")

    sub = add_command("note", "add a score or a remark to a run, in its table and report", epilog=NOTE)
    sub.add_argument("run", help="id of a run, or its beginning")
    sub.add_argument("remark", nargs="+", metavar="NAME=NUMBER|WORDS", help="numbers with names, and words")
    sub.add_argument("--row", default="", help="label of a row of the run's table (default: the run itself)")

    sub = add_command("gc", "list results that no kept run needs, and remove them with --yes", epilog=GC)
    sub.add_argument("--keep", type=number(int, 0), default=5, metavar="N",
        help="keep the newest N finished runs, all runs after the oldest of these, and N sweeps (default: 5)")
    sub.add_argument("--grace-period", type=number(float, 0), default=24.0, metavar="HOURS",
        help="keep everything that was created or used in the last HOURS hours, at least a minute (default: 24)")
    sub.add_argument("--yes", action="store_true", help="remove these results (default: only list them)")

    add_command("verify", "read every byte of every result, and check that it is unchanged", epilog=VERIFY)
    return parser.parse(argv)


def _add_address(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--address",
        help="address of a running Ray cluster (default: the environment variable RAY_ADDRESS, else start Ray on this"
        " machine)")


def _add_run(sub: argparse.ArgumentParser) -> None:
    _add_address(sub)
    sub.add_argument("--repair", action="store_true",
        help="check the content of all reused results, and compute damaged ones again (default: stop with an error)")


def _add_sweep(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--space", type=Path, required=True, metavar="FILE", help="YAML file of the search space; see tune_spaces/")
    sub.add_argument(
        "--metric", required=True, help="metric to optimize, such as map@25, or STEP.NAME for the metric of a step")
    sub.add_argument("--trials", type=number(int, 1), default=16, metavar="N",
        help="number of trials, including the one with the defaults (default: 16)")
    sub.add_argument("--stopping", choices=["asha", "none"], default="asha",
        help="early stopping: asha ends bad trials at a checkpoint, none runs all to the end (default: asha)")
    sub.add_argument("--grace-period", type=number(int, 1), default=1, metavar="N",
        help="ASHA grace period: number of checkpoints before a trial may be stopped (default: 1)")
    sub.add_argument("--reduction-factor", type=number(int, 2), default=3, metavar="N",
        help="ASHA reduction factor (default: 3)")
    sub.add_argument("--seeds", type=number(int, 1), default=1, metavar="N",
        help="training seeds per trial; trials are compared by the mean. With 2 or more, the result says whether the"
        " winner beats the defaults by more than noise (default: 1)")
    sub.add_argument("--seed", type=number(int, 0), default=0, help="random seed of the search (default: 0)")
    sub.add_argument("--max-concurrent", type=number(int, 1), metavar="N",
        help="maximum number of trials at once (default: as many as the cluster can place)")
    sub.add_argument("--gpus-per-trial", type=number(int, 1), metavar="N",
        help="GPUs of each trial; more for a model that one GPU cannot train (default: an equal part of the GPUs of the"
        " cluster, at least 1)")
    _add_address(sub)
# fmt: on


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
