"""One thread a process: the tests run side by side, and sums of small tensors are then the same on every machine."""

import gc

import torch

torch.set_num_threads(1)
# With the millions of objects of a test process, collecting garbage as often as Python does costs a twentieth of the time.
gc.set_threshold(200_000, 20, 100)
