"""The default backend: a recorded step as plain Python, run over pieces of the tensors that fit a cache."""
