"""Choosing: the plan of a comparison, the search for numbers, and the statistics."""
