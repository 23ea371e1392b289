"""The graph that `steadyrun load` runs: it says as much as it is told to, and nothing else."""
