"""All blocks, one module a slot.  See `sandbox.blocks.base` for what a block is and how to write one."""

from sandbox.blocks.averaging import NoAveraging, RunningMaximum
from sandbox.blocks.base import (
    ELEMENT,
    SCOPE,
    TENSOR,
    Block,
    Flow,
    block,
)
from sandbox.blocks.curvature import (
    Belief,
    CenteredSecondMoment,
    Hutchinson,
    SecondMoment,
    SumOfSquares,
    Unit,
    WeakSecant,
)
from sandbox.blocks.decay import AdamWDecay, Decoupled, NoDecay, Stable
from sandbox.blocks.gradient import ClipGlobalNorm, ClipParameterNorm, ClipValue, L2Decay
from sandbox.blocks.moment import EMA, HeavyBall, NoMoment, RawEMA
from sandbox.blocks.number import Number, number, where
from sandbox.blocks.projection import Box, NoProjection
from sandbox.blocks.rectifier import (
    AbsoluteFloor,
    BeliefFloor,
    Monotone,
    NoRectifier,
    Power,
    RectifiedSquareRoot,
    ScaleInvariantFloor,
    SoftAbsolute,
    SquareRoot,
    StepRatio,
)
from sandbox.blocks.schedule import Geometric, InverseSquareRoot, InverseTime
from sandbox.blocks.slots import Averaging, Curvature, Decay, Gradient, Moment, Projection, Rectifier, Schedule, Solve
from sandbox.blocks.solve import ClipEach, Divide, Sign

__all__ = [
    "ELEMENT",
    "EMA",
    "SCOPE",
    "TENSOR",
    "AbsoluteFloor",
    "AdamWDecay",
    "Averaging",
    "Belief",
    "BeliefFloor",
    "Block",
    "Box",
    "CenteredSecondMoment",
    "ClipEach",
    "ClipGlobalNorm",
    "ClipParameterNorm",
    "ClipValue",
    "Curvature",
    "Decay",
    "Decoupled",
    "Divide",
    "Flow",
    "Geometric",
    "Gradient",
    "HeavyBall",
    "Hutchinson",
    "InverseSquareRoot",
    "InverseTime",
    "L2Decay",
    "Moment",
    "Monotone",
    "NoAveraging",
    "NoDecay",
    "NoMoment",
    "NoProjection",
    "NoRectifier",
    "Number",
    "Power",
    "Projection",
    "RawEMA",
    "RectifiedSquareRoot",
    "Rectifier",
    "RunningMaximum",
    "ScaleInvariantFloor",
    "Schedule",
    "SecondMoment",
    "Sign",
    "SoftAbsolute",
    "Solve",
    "SquareRoot",
    "Stable",
    "StepRatio",
    "SumOfSquares",
    "Unit",
    "WeakSecant",
    "block",
    "number",
    "where",
]
