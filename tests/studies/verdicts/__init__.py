"""Quantities, deciders, verdicts."""
