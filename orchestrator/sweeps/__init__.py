"""Hyperparameter sweeps: a recipe run with many settings, as Ray Tune trials over one store.

    command    the command `ratchet sweep`: the trials, the winner, its comparison with the defaults, the report
    space      the search space: a YAML file of settings and distributions
    plan       the sweep, built and checked before anything is started: the metric to optimize, the deciding step that
               reports it, and the steps that a trial needs for it
    trial      one trial: an ordinary run up to the deciding step, in a Ray Tune actor
    search     the driver: searcher, scheduler, concurrency

A trial is an ordinary run. Its steps have their usual fingerprints, so steps that trials have in common are computed
once, and results of earlier runs and sweeps are reused. Each command has a folder `sweeps/<id>/` in the store with

    about.json           command
    trials.json          the trials in the order in which they were first started
    trials/<key>/        the runs of a trial: a run log per seed
    report.html, .md     and winner.yaml, if a trial finished

A sweep that was interrupted, or that gets more trials, is given again: it runs all trials, whose finished steps cost
nothing. The trials of the random searcher depend on its seed alone, so they are the same ones.
"""
