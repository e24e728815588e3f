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
from sandbox.blocks.bounds import Bound, CorrectedRoot, Scaled
from sandbox.blocks.curvature import (
    Belief,
    CenteredSecondMoment,
    Hutchinson,
    SecondMoment,
    SumOfSquares,
    Unit,
    WeakSecant,
)
from sandbox.blocks.decay import AdamWDecay, Decoupled, NoDecay, ProximalDecay, Stable
from sandbox.blocks.gradient import ClipGlobalNorm, ClipParameterNorm, ClipValue, L2Decay, VarianceReduction
from sandbox.blocks.limited_memory import TwoLoop, UnitLength
from sandbox.blocks.mixtures import FastAndSlow, NesterovMoment, TwoRates
from sandbox.blocks.moment import EMA, HeavyBall, NoMoment, RawEMA
from sandbox.blocks.moments_of_squares import HessianEMA, NesterovSecondMoment, ShiftedSecondMoment
from sandbox.blocks.number import Number, number, where
from sandbox.blocks.pairs import Successive
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
from sandbox.blocks.slots import Averaging, Curvature, Decay, Gradient, Moment, Pairs, Projection, Rectifier, Schedule, Solve
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
    "Bound",
    "Box",
    "CenteredSecondMoment",
    "ClipEach",
    "ClipGlobalNorm",
    "ClipParameterNorm",
    "ClipValue",
    "CorrectedRoot",
    "Curvature",
    "Decay",
    "Decoupled",
    "Divide",
    "FastAndSlow",
    "Flow",
    "Geometric",
    "Gradient",
    "HeavyBall",
    "HessianEMA",
    "Hutchinson",
    "InverseSquareRoot",
    "InverseTime",
    "L2Decay",
    "Moment",
    "Monotone",
    "NesterovMoment",
    "NesterovSecondMoment",
    "NoAveraging",
    "NoDecay",
    "NoMoment",
    "NoProjection",
    "NoRectifier",
    "Number",
    "Pairs",
    "Power",
    "Projection",
    "ProximalDecay",
    "RawEMA",
    "RectifiedSquareRoot",
    "Rectifier",
    "RunningMaximum",
    "ScaleInvariantFloor",
    "Scaled",
    "Schedule",
    "SecondMoment",
    "ShiftedSecondMoment",
    "Sign",
    "SoftAbsolute",
    "Solve",
    "SquareRoot",
    "Stable",
    "StepRatio",
    "Successive",
    "SumOfSquares",
    "TwoLoop",
    "TwoRates",
    "Unit",
    "UnitLength",
    "VarianceReduction",
    "WeakSecant",
    "block",
    "number",
    "where",
]
