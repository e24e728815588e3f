"""One step of a recipe as a graph of aten operators: how tensors lie, recording, cutting into phases, the self-check."""
