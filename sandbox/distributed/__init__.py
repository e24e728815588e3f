"""Training across processes: shards of parameters, sums over all of them, and what the ranks decide together."""
