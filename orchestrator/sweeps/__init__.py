"""Hyperparameter sweeps: a recipe run with many settings, as Ray Tune trials over one store.

    command    the command `ratchet sweep`
    space      the search space: a YAML file of settings and distributions
    plan       the sweep, built and checked before anything is started
    objective  the metric to optimize, the deciding step that reports it, and the steps that a trial needs for it
    trial_log  the trials so far, in the sweep's folder; an interrupted sweep continues from it
    trial      one trial: an ordinary run up to the deciding step, in a Ray Tune actor
    search     the driver: searcher, scheduler, concurrency
    results    the winner, the comparison with the defaults, the importance of settings, the report

A trial is an ordinary run. Its steps have their usual fingerprints, so steps that trials have in common are computed
once, and results of earlier runs are reused.
"""
