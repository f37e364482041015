"""One file per verb: the distributed programs that steps run. `job` is the contract with the orchestrator."""
