"""Rows by hand."""

import polars as pl


def rows_of(**columns):
    """Columns: name -> arm -> a list a seed of its values at the evaluations of a run of five updates; None: it diverged.

    Of three values the first is the start; of one it is the end.
    """
    table = {}
    for column, arms in columns.items():
        for arm, seeds in arms.items():
            for seed, values in enumerate(seeds):
                steps = [0, 2, 4] if len(values) == 3 else [4]
                for step, value in zip(steps, values, strict=True):
                    row = table.setdefault((arm, seed, step), {"arm": arm, "seed": seed, "step": step, "diverged": False})
                    row[column] = value
                    row["diverged"] |= value is None
    shared = {"study": "F6", "part": "main", "role": "final", "steps": 4, "lr": 0.1}
    schema = dict.fromkeys(columns, pl.Float64)
    return {"F6": pl.DataFrame([{**shared, **row} for row in table.values()], schema_overrides=schema)}
