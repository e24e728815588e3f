"""Settings of the smallest comparisons."""

SMALL = dict(seeds=2, tuning_seeds=1, rates=3, tuner="grid", steps=20, evaluations=4, vectorised=False)
