"""`ratchet sweep`: from the command line to the table at its end."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path

from orchestrator import screens
from orchestrator.cluster import Cluster
from orchestrator.errors import RecipeError
from orchestrator.store import Store
from orchestrator.sweep import outcome
from orchestrator.sweep.ledger import key_of
from orchestrator.sweep.plan import SweepPlan, plan
from orchestrator.view import View


def sweep(arguments: argparse.Namespace, lines: Sequence[str], argv: Sequence[str]) -> int:
    """lines: `name=value`, of all trials. The exit status: 0 done, 1 where every trial failed, 130 interrupted."""
    for name, least in (("trials", 1), ("grace", 1), ("reduction", 2), ("seeds", 1), ("at_once", 1)):
        given = getattr(arguments, name)
        if given is not None and given < least:
            raise RecipeError(f"--{name.replace('_', '-')} {given}: expected {least} or more")
    if arguments.promote and not arguments.promote.replace("-", "").replace("_", "").isalnum():
        raise RecipeError(f"--promote {arguments.promote}: expected a name of letters, digits, - and _")
    store = Store.open(arguments.store)
    how = {key: getattr(arguments, key) for key in ("searcher", "stopping", "grace", "reduction", "seeds", "seed")}
    command = shlex.join(argv)
    asked = plan(arguments.recipe, lines, arguments.space, arguments.metric, store, how, command)
    cluster = Cluster(arguments.address)
    try:
        finished = _carry_out(asked, arguments, cluster, store)
    finally:
        cluster.stop()
    report = outcome.report(asked, store, command)
    screens.show_sweep(report)
    trials = list(asked.ledger.trials.values())
    best = outcome.winner(trials, asked.target.maximize)
    if best is not None:
        screens.say(f"winner: {report.winner_command}")
        screens.say(f"   or: ratchet run {asked.given} --settings {outcome.keep_winner(asked, best)}")
        if arguments.promote:
            screens.say(f"model:  {outcome.promote(asked, best, store, arguments.promote)}")
    screens.say(f"report: {screens.write_sweep(asked.ledger.folder, report)}")
    store.publish(asked.ledger.folder)
    if not finished:
        screens.say("give the same command again to go on from here")
        return 130
    return 0 if best is not None else 1


def _carry_out(asked: SweepPlan, arguments: argparse.Namespace, cluster: Cluster, store: Store) -> bool:
    """Runs what is not known yet; whether all trials came to an end. Where all are known, Ray is not started."""
    ledger, settled = asked.ledger, asked.ledger.settled()
    if arguments.searcher == "random":
        points = asked.space.points(arguments.trials, arguments.seed)
        missing = sum(key_of(point) not in settled for point in points)
    else:
        missing = arguments.trials - len(settled)
    if missing <= 0:
        return True
    with View([""] * arguments.trials, f"sweep {asked.recipe.name}", ledger.id, noun="trial") as view:
        for note in asked.notes:
            view.message(note)
        view.message("starting Ray" if not cluster.address else f"connecting to {cluster.address}")
        cluster.start()
        from orchestrator.sweep.search import Search, carry_out, room
        from orchestrator.sweep.trial import Spec

        search = Search(
            arguments.trials,
            arguments.searcher,
            arguments.stopping,
            arguments.grace,
            arguments.reduction,
            arguments.seed,
        )
        spec = Spec(
            recipe=str(Path(arguments.recipe).resolve()) if arguments.recipe.endswith(".py") else arguments.recipe,
            lines=asked.lines,
            target=asked.target,
            seeds=arguments.seeds,
            seeded=asked.seeded,
            store=store.where,
            folder=ledger.id,
            known=settled,
            names=tuple(dimension.name for dimension in asked.space.dimensions),
            board=cluster.board,
        )
        most = room(asked.steps, cluster)
        at_once = arguments.at_once or most
        view.message(f"{asked.target.name} of {asked.target.step} decides; {at_once} at once")
        return carry_out(spec, asked.space, search, ledger, at_once, view)
