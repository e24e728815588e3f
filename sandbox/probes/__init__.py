"""Measurements inside a step, which any backend carries unchanged.

    watch = sandbox.probes.Watch(["floor_occupancy", "secant_residual"], every=10)
    optimizer.watch = watch
    ...                       # train
    watch.frame               # step, tensor, probe, value

A probe is a function of a `View`, which holds what the step computed under the paper's names:

    def step_length(v):
        return (v.theta_new - v.theta).norm()

    optimizer.watch = sandbox.probes.Watch([step_length, "floor_occupancy"])

`ALL` names the ones that come with the package.
"""

from sandbox.probes.measures import ALL, needs
from sandbox.probes.occupancy import floor_occupancy
from sandbox.probes.view import View
from sandbox.probes.watch import EVERYTHING, Watch, find

__all__ = ["ALL", "EVERYTHING", "View", "Watch", "find", "floor_occupancy", "needs"]
