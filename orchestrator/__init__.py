"""The orchestrator: plans a recipe's steps, runs them, keeps their results and reports. It knows no model and no data.

A command goes one way through these files:

    cli        the command line
    recipe     finds the recipe, applies --set:                 names and texts -> steps
    step       what a recipe is written with
    plan       which steps are done, and why others are not:    steps -> identities, hits, misses
    identity     what makes a step the same step; canonical     one JSON form per value
    source       digests of what the person gave
    run        the loop: what can start is started, until nothing can
    schedule     what to start, what to skip; a pure function
    execute      one step from lease to commit; failures        what may pass and is tried again
    cluster      Ray: started when first needed; cluster_file   what its autoscaler may bring
    submit     a run on a cluster elsewhere; shipment           what of this checkout it needs
    store      results by content, committed once; manifest     files and digests of one artifact
    lease      who works on a step; a stale attempt can never commit
    journal    what a run leaves behind; gc                     what nothing needs any more
    account    the recipe's table and the report's data
    report     report.html and report.md; view                  the live view; screens: what the commands print
"""
