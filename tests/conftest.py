"""One thread a process: the tests run side by side, and sums of small tensors are then the same on every machine."""

import torch

torch.set_num_threads(1)
