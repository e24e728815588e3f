"""Many small tensors in one buffer, and the plan of a step on it; shared by the default and the compiled backend."""
