"""The compiled backend: a step's graph compiled by Inductor."""
