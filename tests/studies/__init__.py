"""Studies: their settings against the paper, their runs, their verdicts."""
