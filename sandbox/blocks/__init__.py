"""All blocks, one module a slot.  See `sandbox.blocks.base` for what a block is and how to write one."""

from sandbox.blocks.averaging import NoAveraging, RunningMaximum
from sandbox.blocks.base import (
    ELEMENT,
    INPUTS,
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
from sandbox.blocks.moments_of_squares import GaussNewtonEMA, HessianEMA, NesterovSecondMoment, ShiftedSecondMoment
from sandbox.blocks.number import Number, number, where
from sandbox.blocks.pairs import AveragedIterates, EmpiricalFisher, Product, SameBatch, Successive
from sandbox.blocks.projection import Box, NoProjection
from sandbox.blocks.rank_two import Broyden, RegularizedBFGS
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
from sandbox.blocks.secant_quotients import AccumulatedSecant, BarzilaiBorwein, DiagonalBarzilaiBorwein
from sandbox.blocks.slots import Averaging, Curvature, Decay, Gradient, Moment, Pairs, Projection, Rectifier, Schedule, Solve
from sandbox.blocks.solve import ClipEach, Divide, Sign

__all__ = [
    "ELEMENT",
    "EMA",
    "INPUTS",
    "SCOPE",
    "TENSOR",
    "AbsoluteFloor",
    "AccumulatedSecant",
    "AdamWDecay",
    "AveragedIterates",
    "Averaging",
    "BarzilaiBorwein",
    "Belief",
    "BeliefFloor",
    "Block",
    "Bound",
    "Box",
    "Broyden",
    "CenteredSecondMoment",
    "ClipEach",
    "ClipGlobalNorm",
    "ClipParameterNorm",
    "ClipValue",
    "CorrectedRoot",
    "Curvature",
    "Decay",
    "Decoupled",
    "DiagonalBarzilaiBorwein",
    "Divide",
    "EmpiricalFisher",
    "FastAndSlow",
    "Flow",
    "GaussNewtonEMA",
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
    "Product",
    "Projection",
    "ProximalDecay",
    "RawEMA",
    "RectifiedSquareRoot",
    "Rectifier",
    "RegularizedBFGS",
    "RunningMaximum",
    "SameBatch",
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
