"""Data sets: what the package holds, how it was made, and what a folder must pass."""
