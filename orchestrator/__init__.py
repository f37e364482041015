"""The orchestrator: plans the steps of a recipe, runs them, keeps their results and writes reports.

cli             the command line
recipe          recipes and `--set`: names and text -> steps
step            what a recipe is written with
plan            which steps have a result, and why others do not
fingerprint     what makes two steps equal; canonical_json has one form per value
execution       runs on Ray: scheduling, leases, retries, warm starts, submission to a cluster
store           results by content: commits, leases, manifests, buckets, garbage collection
run_log         the files of a run
sweeps          searches over settings
reporting       report.html and report.md
job_interface   what jobs and the orchestrator know of each other
"""
