"""Mistakes in the words of a command: commands, options, numbers, recipes, settings, runs."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from mistakes import Mistake, answers, check, parametrize

from ratchet.orchestrator.cli.parser import Parser, parse

ALL = (
    "run, sweep, plan, recipes, status, models, evaluate, compare, export, embed, search, report, "
)
ALL += "note, gc, verify"
RECIPES = (
    "chat, compare, countdown, documents, embed, evaluate, export, gsm8k, misconceptions, predict, "
)
RECIPES += "quickstart, retriever, search, squad, theorems"

COMMANDS = answers(
    ("", r"the following arguments are required: COMMAND; `ratchet --help` explains them"),
    *(
        (f"{given} quickstart", rf"{given}: no such command; .*did you mean '{meant}'\?")
        for given, meant in (
            ("rnu", "run"),
            ("RUN", "run"),
            ("runs", "run"),
            ("swep", "sweep"),
            ("plna", "plan"),
            ("explain", "plan"),
            ("recipe", "recipes"),
            ("recieps", "recipes"),
            ("stauts", "status"),
            ("reprot", "report"),
            ("verfy", "verify"),
        )
    ),
    ("help", r"help: no such command"),
    ("garbage-collect", r"garbage-collect: no such command"),
    ("quickstart", r"quickstart: no such command"),
    ("./mine.py", r"\./mine\.py: no such command"),
)

OPTIONS = answers(
    *(
        (
            f"{command} {option}",
            rf"{command.split()[0]} {option}: not an option; .*did you mean '{meant}'\?",
        )
        for command, option, meant in (
            ("plan quickstart", "--expain", "--explain"),
            ("plan quickstart", "--sets", "--set"),
            ("run quickstart", "--adress", "--address"),
            ("run quickstart", "--repiar", "--repair"),
            ("sweep quickstart --space x --metric y", "--trails", "--trials"),
            ("sweep quickstart --space x --metric y", "--sede", "--seed"),
            ("gc", "--yess", "--yes"),
            ("gc", "--kep", "--keep"),
            ("status", "--jsn", "--json"),
        )
    ),
    *(
        (f"{command} {option}", rf"{command.split()[0]} {option}: not an option")
        for command, option in (
            ("plan quickstart", "--verbose"),
            ("plan quickstart", "-v"),
            ("plan quickstart", "--dry-run"),
            ("run quickstart", "--force"),
            ("run quickstart", "--explain"),
            ("gc", "--dry-run"),
            ("report", "--html"),
            ("recipes", "--all"),
        )
    ),
    *(
        (f"{command} word", rf"{command.split()[0]} word: not an option")
        for command in (
            "plan quickstart",
            "plan quickstart --explain",
            "gc",
            "verify",
            "report one",
            "recipes squad",
        )
    ),
    *(
        (command, rf"{command.split()[0]} the following arguments are required: {missing}")
        for command, missing in (
            ("run", "recipe"),
            ("plan", "recipe"),
            ("sweep", "recipe, --space, --metric"),
            ("sweep quickstart --space x", "--metric"),
            ("sweep quickstart --metric x", "--space"),
        )
    ),
    *(
        (command, rf"{command.split()[0]} {command.split()[-1]}: expected one argument")
        for command in (
            "plan quickstart --set",
            "plan quickstart --settings",
            "plan quickstart --store",
            "run quickstart --address",
            "gc --keep",
        )
    ),
    (
        "plan quickstart --s x",
        r"plan ambiguous option: --s could match --store, --set, --settings, --seeds",
    ),
    ("plan quickstart --explain=3", r"plan --explain: ignored explicit argument '3'"),
    ("gc --yes=no", r"gc --yes: ignored explicit argument 'no'"),
    *(
        (
            f"sweep quickstart --space x --metric y {option} {given}",
            rf"sweep {option} {given}: expected one of {known}",
        )
        for option, given, known in (
            ("--stopping", "ahsa", r"asha, none; did you mean 'asha'\?"),
            ("--stopping", "median", "asha, none; .*"),
        )
    ),
    *(
        (f"plan quickstart {words}", rf"plan {words.split()[0]}: not an option")
        for words, meant in (
            ("iterations=1", "iterations=1"),
            ("--iterations 1", "iterations=1"),
            ("--iterations=1", "iterations=1"),
            ("finetune_embedder.epochs=2", r"finetune_embedder\.epochs=2"),
            ("--learning-rate 1e-4", r"JOB\.learning_rate=1e-4"),
            ("--workers 4", r"JOB\.workers=4"),
        )
    ),
)

WHOLE, ANY = "a whole number", "a number"
NUMBERS = answers(
    *(
        (
            f"{command} {option} {given}",
            rf"{command.split()[0]} {option}: {given}: expected {what}, {limits}; correct it",
        )
        for command, option, what, limits, values in (
            ("gc", "--keep", WHOLE, "0 or more", "-1 nan inf two 1.5"),
            ("gc", "--grace-period", ANY, "0 or more", "-5 nan inf 1h"),
            (
                "sweep quickstart --space x --metric y",
                "--trials",
                WHOLE,
                "1 or more",
                "0 -1 many 1.5 nan 1e3",
            ),
            ("sweep quickstart --space x --metric y", "--seeds", WHOLE, "1 or more", "0 two"),
            ("sweep quickstart --space x --metric y", "--seed", WHOLE, "0 or more", "-1 x"),
            (
                "sweep quickstart --space x --metric y",
                "--grace-period",
                WHOLE,
                "1 or more",
                "0 inf",
            ),
            (
                "sweep quickstart --space x --metric y",
                "--reduction-factor",
                WHOLE,
                "2 or more",
                "1 0.5",
            ),
            (
                "sweep quickstart --space x --metric y",
                "--max-concurrent",
                WHOLE,
                "1 or more",
                "0 all",
            ),
        )
        for given in values.split()
    ),
    ("gc --keep ''", r"gc --keep: \(empty\): expected a whole number, 0 or more; correct it"),
)

NAMES = answers(
    *(
        (f"plan {given}", rf"recipe '{given}': unknown; .*did you mean '{meant}'\?")
        for given, meant in (
            ("quikstart", "quickstart"),
            ("Quickstart", "quickstart"),
            ("misconception", "misconceptions"),
            ("GSM8K", "gsm8k"),
            ("theorem", "theorems"),
            ("retreiver", "retriever"),
        )
    ),
    ("plan ''", r"recipe '': unknown"),
    ("plan .", r"recipe '\.': unknown"),
    (
        "plan nosuch.py",
        rf"recipe nosuch\.py: no such file; give a recipe's name \({RECIPES}\) or a file",
    ),
    ("recipes quikstart", r"recipe 'quikstart': unknown; .*did you mean 'quickstart'\?"),
    ("recipes nosuch.py", r"recipe nosuch\.py: no such file"),
    ("plan theorems", r"recipe theorems: data not given"),
    ("plan gsm8k", r"recipe gsm8k: base, data not given"),
    *(
        (f"plan quickstart --set {line}", rf"--set {line}: .*; did you mean '{meant}'\?")
        for line, meant in (
            ("iteratons=1", "iterations"),
            ("Iterations=1", "iterations"),
            ("finetune_embeder.epochs=2", "finetune_embedder"),
            ("iter9/mine.window=2,100", "iter0/mine"),
            ("finetune_embedder.epoches=2", "epochs"),
            ("embed.worker=2", "workers"),
            ("embed.gpu=1", "gpus"),
            ("finetune_embedder.lr_scheduler_type=cosin", "cosine"),
        )
    ),
    *(
        (f"plan quickstart --set {line}", rf"--set {line}: .*expected (a valid|name=value).*")
        for line in (
            "iterations",
            "iterations=one",
            "iterations=1.5",
            "iterations=",
            "=1",
            "finetune_embedder.epochs",
            "finetune_embedder.epochs=two",
            "finetune_embedder.learning_rate=fast",
            "mine.window=wide",
            "embed.workers=many",
        )
    ),
    ("plan quickstart --settings nosuch.yaml", r"nosuch\.yaml: no such file"),
    ("plan quickstart --settings .", r"\.: a folder given"),
)


@parametrize(COMMANDS, OPTIONS, NUMBERS, NAMES)
def test_a_mistake_is_answered_in_one_line(
    mistake: Mistake,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    check(mistake, tmp_path, monkeypatch, capsys)


def test_help_describes_every_argument_of_every_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Parser, "parse", lambda parser, argv: parser)
    (commands,) = [one for one in parse([])._actions if isinstance(one, argparse._SubParsersAction)]
    assert ", ".join(commands.choices) == ALL
    wrong = [
        (name, one.dest)
        for name, sub in commands.choices.items()
        for one in sub._actions
        if not one.help
    ]
    assert not wrong
