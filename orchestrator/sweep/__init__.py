"""Sweeps: a recipe run with many settings, as Ray Tune's trials over one store.

    space    what is tried: a YAML file of settings and distributions, in the grammar of `--set`
    plan     all of it worked out and checked, before anything is started
    target   what decides: which step's number, and which steps a trial needs for it
    ledger   what is known of each trial, in the sweep's folder; what goes on after a kill is read from it
    trial    one trial: an ordinary run, up to the step that decides, inside an actor of Ray Tune
    search   the driver: searcher, scheduler, how many at once; Tune runs it
    outcome  what it amounts to: the table, the winner, what sharing saved

A trial is a driver like any other: its steps have the identities they always have, so what two trials have in common
is computed by one of them, and what an earlier run made is found.
"""
