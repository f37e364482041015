"""Hyperparameter sweeps: a recipe run with many settings, as Ray Tune trials over one store.

    command    the command `ratchet sweep`
    space      the search space: a YAML file of settings and distributions
    plan       the sweep, built and checked before anything is started
    objective  the metric to optimize, the deciding step that reports it, and the steps that a trial needs for it
    trial      one trial: an ordinary run up to the deciding step, in a Ray Tune actor
    search     the driver: searcher, scheduler, concurrency
    results    the trials so far, the winner, the comparison with the defaults, the report

A trial is an ordinary run. Its steps have their usual fingerprints, so steps that trials have in common are computed
once, and results of earlier runs are reused. The folder `sweeps/<id>/` of the store holds

    about.json           command and inputs
    trials.json          the trials in the order in which they were first started
    trials/<key>/        the runs of a trial: a run log per seed
    report.html, .md     and winner.yaml, if a trial finished

The sweep's id is a digest of the search options and of everything that the values of trials depend on: recipe,
settings, space, metric, code of the jobs, data. The number of trials is left out: with more trials, a sweep continues.
"""
