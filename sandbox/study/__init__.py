"""The parts of a comparison: one run, the store on disk, statistics, tables and pictures."""
