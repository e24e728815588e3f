"""All blocks, by slot, in the order of a step.  `sandbox.blocks.base` says what a block is and how to write one.

gradient    L2Decay, ClipGlobalNorm, ClipParameterNorm, ClipValue, VarianceReduction, AmplifySlow, PastNormalized,
            LayerwiseGradient, Sharpness
moment      EMA, RawEMA, HeavyBall, NoMoment, NesterovEMA, NesterovMoment, FastAndSlow, TwoRates, ScheduledNesterov
pairs       Successive, SameBatch, Product, AveragedIterates, EmpiricalFisher
basis       Standard, Kronecker, DelayedKronecker, SOAPBasis, KroneckerFactors
curvature   WeakSecant, SecondMoment, ShiftedSecondMoment, NesterovSecondMoment, CenteredSecondMoment, Belief, SumOfSquares,
            SM3, Hutchinson, HessianEMA, GaussNewtonEMA, KroneckerEigenvalues, AccumulatedSecant, BarzilaiBorwein,
            DiagonalBarzilaiBorwein, FactoredSecondMoment, RowSecondMoment,
            TensorSecondMoment, Unit, Zero
averaging   NoAveraging, RunningMaximum, EMA
rectifier   AbsoluteFloor, ScaleInvariantFloor, BeliefFloor, SoftAbsolute, SquareRoot, CorrectedRoot, RectifiedSquareRoot,
            Power, FlooredRoot, StepRatio, NoRectifier; around another rectifier: Monotone, Bound, Scaled, Shift
solve       Divide, Sign, SignBySides, ClipEach, Orthogonalize, TwoLoop, Broyden, RegularizedBFGS, FullMatrix, NormBall;
            around another solver: Graft, UnitLength, NeuronNormalized, ElementNormalized
adjust      Cautious, CautiousCount, GradientSigns, ClipRMS, RelativeStep
decay       NoDecay, Decoupled, AdamWDecay, Stable, ProximalDecay, TrustRatio, WeightScaled
projection  NoProjection, Box
readout     Last, WeightEMA, AverageThenDecay, TailMean, ScheduleFree, RectifiedScheduleFree, PrimalAveraging
number      Geometric, InverseTime, InverseSquareRoot   (functions of t, wherever a number may stand)

To write one: `block`, `number`, `Number`, `where`, the base class of a slot (Gradient, Moment, Pairs, Basis, Curvature,
Averaging, Rectifier, Solve, Adjust, Decay, Projection, Readout, Schedule), `Flow` (what a step has computed), and the kinds of
state (ELEMENT, SCOPE, TENSOR, ROWS, COLUMNS, LEFT, RIGHT, SQUARE).
"""

from typing import Any

from sandbox.blocks.adjust import Cautious, CautiousCount, ClipRMS, GradientSigns
from sandbox.blocks.averaging import NoAveraging, RunningMaximum
from sandbox.blocks.base import (
    COLUMNS,
    ELEMENT,
    INPUTS,
    LEFT,
    OF_MATRICES,
    QUADRATIC,
    RIGHT,
    ROWS,
    SCOPE,
    SQUARE,
    TENSOR,
    Block,
    Flow,
    block,
)
from sandbox.blocks.basis import DelayedKronecker, Kronecker, KroneckerFactors, SOAPBasis, Standard
from sandbox.blocks.bounds import Bound, CorrectedRoot, Scaled, Shift
from sandbox.blocks.curvature import (
    Belief,
    CenteredSecondMoment,
    Hutchinson,
    SecondMoment,
    SumOfSquares,
    Unit,
    WeakSecant,
    Zero,
)
from sandbox.blocks.decay import AdamWDecay, Decoupled, NoDecay, ProximalDecay, Stable
from sandbox.blocks.gradient import AmplifySlow, ClipGlobalNorm, ClipParameterNorm, ClipValue, L2Decay, VarianceReduction
from sandbox.blocks.graft import Graft
from sandbox.blocks.layerwise import LayerwiseGradient, RelativeStep, TrustRatio, WeightScaled
from sandbox.blocks.limited_memory import TwoLoop, UnitLength
from sandbox.blocks.mixtures import FastAndSlow, NesterovEMA, NesterovMoment, TwoRates
from sandbox.blocks.moment import EMA, HeavyBall, NoMoment, RawEMA, ScheduledNesterov
from sandbox.blocks.moments_of_squares import GaussNewtonEMA, HessianEMA, NesterovSecondMoment, ShiftedSecondMoment
from sandbox.blocks.norm_ball import NormBall
from sandbox.blocks.normalized import ElementNormalized, NeuronNormalized, PastNormalized
from sandbox.blocks.number import Number, number, where
from sandbox.blocks.orthogonal import Orthogonalize
from sandbox.blocks.pairs import AveragedIterates, EmpiricalFisher, Product, SameBatch, Successive
from sandbox.blocks.projection import Box, NoProjection
from sandbox.blocks.rank_two import Broyden, RegularizedBFGS
from sandbox.blocks.readout import (
    AverageThenDecay,
    Last,
    PrimalAveraging,
    RectifiedScheduleFree,
    ScheduleFree,
    TailMean,
    WeightEMA,
)
from sandbox.blocks.rectifier import (
    AbsoluteFloor,
    BeliefFloor,
    FlooredRoot,
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
from sandbox.blocks.shaped import SM3, FactoredSecondMoment, KroneckerEigenvalues, RowSecondMoment, TensorSecondMoment
from sandbox.blocks.sharpness import Sharpness
from sandbox.blocks.slots import (
    Adjust,
    Averaging,
    Basis,
    Curvature,
    Decay,
    Gradient,
    Moment,
    Pairs,
    Projection,
    Readout,
    Rectifier,
    Schedule,
    Solve,
)
from sandbox.blocks.solve import ClipEach, Divide, Sign, SignBySides
from sandbox.blocks.window import FullMatrix

__all__ = [
    "COLUMNS",
    "ELEMENT",
    "EMA",
    "INPUTS",
    "LEFT",
    "OF_MATRICES",
    "QUADRATIC",
    "RIGHT",
    "ROWS",
    "SCOPE",
    "SM3",
    "SQUARE",
    "TENSOR",
    "AbsoluteFloor",
    "AccumulatedSecant",
    "AdamWDecay",
    "Adjust",
    "AmplifySlow",
    "AverageThenDecay",
    "AveragedIterates",
    "Averaging",
    "BarzilaiBorwein",
    "Basis",
    "Belief",
    "BeliefFloor",
    "Block",
    "Bound",
    "Box",
    "Broyden",
    "Cautious",
    "CautiousCount",
    "CenteredSecondMoment",
    "ClipEach",
    "ClipGlobalNorm",
    "ClipParameterNorm",
    "ClipRMS",
    "ClipValue",
    "CorrectedRoot",
    "Curvature",
    "Decay",
    "Decoupled",
    "DelayedKronecker",
    "DiagonalBarzilaiBorwein",
    "Divide",
    "ElementNormalized",
    "EmpiricalFisher",
    "FactoredSecondMoment",
    "FastAndSlow",
    "FlooredRoot",
    "Flow",
    "FullMatrix",
    "GaussNewtonEMA",
    "Geometric",
    "Gradient",
    "GradientSigns",
    "Graft",
    "HeavyBall",
    "HessianEMA",
    "Hutchinson",
    "InverseSquareRoot",
    "InverseTime",
    "Kronecker",
    "KroneckerEigenvalues",
    "KroneckerFactors",
    "L2Decay",
    "Last",
    "LayerwiseGradient",
    "Moment",
    "Monotone",
    "NesterovEMA",
    "NesterovMoment",
    "NesterovSecondMoment",
    "NeuronNormalized",
    "NoAveraging",
    "NoDecay",
    "NoMoment",
    "NoProjection",
    "NoRectifier",
    "NormBall",
    "Number",
    "Orthogonalize",
    "Pairs",
    "PastNormalized",
    "Power",
    "PrimalAveraging",
    "Product",
    "Projection",
    "ProximalDecay",
    "RawEMA",
    "Readout",
    "RectifiedScheduleFree",
    "RectifiedSquareRoot",
    "Rectifier",
    "RegularizedBFGS",
    "RelativeStep",
    "RowSecondMoment",
    "RunningMaximum",
    "SOAPBasis",
    "SameBatch",
    "ScaleInvariantFloor",
    "Scaled",
    "Schedule",
    "ScheduleFree",
    "ScheduledNesterov",
    "SecondMoment",
    "Sharpness",
    "Shift",
    "ShiftedSecondMoment",
    "Sign",
    "SignBySides",
    "SoftAbsolute",
    "Solve",
    "SquareRoot",
    "Stable",
    "Standard",
    "StepRatio",
    "Successive",
    "SumOfSquares",
    "TailMean",
    "TensorSecondMoment",
    "TrustRatio",
    "TwoLoop",
    "TwoRates",
    "Unit",
    "UnitLength",
    "VarianceReduction",
    "WeakSecant",
    "WeightEMA",
    "WeightScaled",
    "Zero",
    "block",
    "number",
    "where",
]

_RENAMED = {
    "CoverOfSquares": "SM3",
    "GivenFactors": "KroneckerFactors",
    "Outer": "KroneckerEigenvalues",
    "Tracked": "SOAPBasis",
}


def __getattr__(name: str) -> Any:
    if name in _RENAMED:
        return globals()[_RENAMED[name]]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
