"""Experiments: compare variants, sweep numbers, inspect curvature; these choose runs and summarise rows, nothing else.

task and optimizers -> `settings` -> `run` (the only training loop) or `vectorised` (many runs as one) -> rows: a `unit` is
made by one of the `executors`, kept in the `store`, told to callbacks by `work`.  `sandbox.compare`, `sandbox.sweep` and
`sandbox.inspect` are the functions of the modules of these names.
"""
