"""The orchestrator: plans the steps of a recipe, runs them, keeps their results and writes reports.

cli             the command line
recipe          finds recipes, applies `--set`, and builds steps
step            the functions and classes that recipes are written with
plan            which steps have a result, and why others have none
fingerprint     identifies a step; canonical_json encodes equal values as equal bytes
execution       runs on Ray: scheduling, leases, retries
store           results by content: commits, leases, manifests, buckets, garbage collection
run_log         the files of a run
sweeps          hyperparameter searches
reporting       report.html, report.md and report.json
job_interface   the interface between jobs and the orchestrator
"""
