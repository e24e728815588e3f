"""Making runs: what takes part, one run, the executors, and the store of finished runs."""
