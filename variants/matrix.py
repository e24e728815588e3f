"""Methods that take a tensor as a matrix, equal step for step to published code or a literal recursion."""

from __future__ import annotations

from sandbox.blocks import (
    EMA,
    SM3,
    AdamWDecay,
    CorrectedRoot,
    ElementNormalized,
    FullMatrix,
    HeavyBall,
    Kronecker,
    KroneckerEigenvalues,
    KroneckerFactors,
    NesterovEMA,
    NeuronNormalized,
    NoMoment,
    NoRectifier,
    NormBall,
    Orthogonalize,
    Power,
    RawEMA,
    SecondMoment,
    Shift,
    SOAPBasis,
    SquareRoot,
    SumOfSquares,
    Unit,
)
from sandbox.recipe import Recipe


def sm3() -> Recipe:
    """SM3-II (Anil et al. 2019): ν = min(r, c) + g², θ = θ - η g/√ν, one number per row and per column; (m, n) views here."""
    return Recipe(lr=0.1, moment=NoMoment(), curvature=SM3(), rectifier=SquareRoot(eps=1e-30))


def muon() -> Recipe:
    """Momentum made orthogonal by five Newton-Schulz steps (Jordan et al. 2024; bfloat16 there); Adam for all others.

    Embeddings and heads are left to Adam, as the authors do, where roles are known: an optimizer is given the model itself.
    `weight_decay=` of an optimizer or a group is for matrices and vectors alike, as everywhere;
    `replace(**{"decay.weight_decay": …})` is for matrices alone, "vectors.decay.weight_decay" for vectors.
    """
    return Recipe(
        lr=0.02,
        moment=NesterovEMA(beta=0.95),
        curvature=Unit(),
        rectifier=NoRectifier(),
        solve=Orthogonalize(steps=5, scale="original"),
        decay=AdamWDecay(weight_decay=0.0),
        vectors=_adam(lr=3e-4, beta=0.9, beta2=0.95, eps=1e-10),
        roles={"embedding": "vectors", "head": "vectors"},
    )


def normuon() -> Recipe:
    """Muon with each row of the direction over the root of its averaged square, at the same norm (Li et al. 2025, NorMuon).

    Differs from the authors' file for convolutions, whose rows there are the kernel's last axis.
    """
    return muon().replace(solve=NeuronNormalized(beta=0.95))


def adamuon() -> Recipe:
    """Muon with each entry of the direction over the root of its averaged square, at RMS 0.2 (Si et al. 2025, AdaMuon).

    Differs from the authors' file for convolutions, whose scale there takes the kernel's sides.
    """
    return muon().replace(
        solve=ElementNormalized(inner=Orthogonalize(scale="none"), beta=0.999), decay=AdamWDecay(weight_decay=0.01)
    )


def scion() -> Recipe:
    """θ = (1-η) θ - η ρ lmo(m): spectral ball of radius 50 for matrices, signs of radius 3000 for heads (Pethick et al. 2025).

    Embeddings row by row and vectors over their root mean square, both of radius 1; the constrained form, whose weights stay in
    the balls.  Differs from the authors' code for convolutions, whose spectral scale there has the kernel's sides apart.
    """
    base = Recipe(
        lr=1e-3,
        moment=EMA(beta=0.9, bias_correction=False),
        curvature=Unit(),
        rectifier=NoRectifier(),
        decay=AdamWDecay(weight_decay=1.0),
    )

    def ball(norm: str, radius: float) -> Recipe:
        return base.replace(solve=NormBall(norm=norm, radius=radius), name=f"scion, {norm}")

    roles = {"head": ball("sign", 3000.0), "embedding": ball("rows", 1.0)}
    return ball("spectral", 50.0).replace(vectors=ball("rms", 1.0), roles=roles)


def shampoo() -> Recipe:
    """θ = θ - η L^(-1/4) g R^(-1/4), L = εI + Σ g gᵀ, R = εI + Σ gᵀ g (Gupta et al. 2018), Adagrad for vectors.

    Differs from the paper: a tensor of more axes is a matrix (m, n) here, where there each axis has its factor; and a vector
    has a whole matrix there.
    """
    return Recipe(
        lr=0.1,
        moment=NoMoment(),
        basis=Kronecker(beta=1.0, eps=1e-4, every=1),
        curvature=KroneckerEigenvalues(),
        rectifier=Power(exponent=0.5, eps=0.0),
        vectors=Recipe(name="adagrad", lr=0.1, moment=NoMoment(), curvature=SumOfSquares(), rectifier=SquareRoot(eps=1e-8)),
    )


def soap() -> Recipe:
    """Adam in Shampoo's eigenvectors, tracked by QR each ten steps (Vyas et al. 2024; decay after the step there).

    Vectors, and matrices with a side above 10,000, are updated by Adam from the first step on; published code leaves that step
    out for all, and transforms such matrices on one side.

    While the first factor is rank deficient, as after a batch of fewer rows than the matrix has, its null space has any basis:
    rounding then chooses, here as in the published code, and grows into other steps.
    """
    return Recipe(
        lr=3e-3,
        moment=RawEMA(beta=0.95),
        basis=SOAPBasis(beta=0.95, every=10),
        curvature=SecondMoment(beta=0.95, bias_correction=False),
        rectifier=CorrectedRoot(beta=0.95, eps=1e-8),
        decay=AdamWDecay(weight_decay=0.01),
    )


def kfac() -> Recipe:
    """θ = θ - η (G ⊗ A + δI)⁻¹ m, factors of layers at labels from the model (Martens & Grosse 2015); SGD for vectors.

    Damped exactly, by eigenvectors, with a fixed δ; the paper adapts δ and the step's length, and damps both factors.
    """
    return Recipe(
        lr=0.01,
        moment=HeavyBall(momentum=0.9),
        basis=KroneckerFactors(beta=0.95, every=1, labels="sampled"),
        curvature=KroneckerEigenvalues(),
        rectifier=Shift(damping=0.01),
        vectors=Recipe(name="sgd", lr=0.01, moment=HeavyBall(momentum=0.9), curvature=Unit(), rectifier=NoRectifier()),
    )


def ekfac() -> Recipe:
    """K-FAC's eigenvectors with an average of squared gradients in place of its eigenvalues (George et al. 2018), D = v + δ.

    The paper's EKFAC-ra, squares of a batch's mean gradient; its EKFAC has the mean of the examples' squares.
    """
    return kfac().replace(lr=1e-3, curvature=SecondMoment(beta=0.95), rectifier=Shift(damping=1e-3))


def ggt() -> Recipe:
    """θ = θ - η (M Mᵀ)^(-1/2) m, nearly, M the last ten m over all tensors (Agarwal et al. 2019; TensorFlow's contrib.opt).

    Differs from the paper as that code does: the window holds m and weighs them equally, where the paper has g weighted by β₂ᵏ.
    """
    return Recipe(
        lr=1e-3,
        moment=EMA(beta=0.9, bias_correction=False),
        curvature=Unit(),
        rectifier=NoRectifier(),
        solve=FullMatrix(window=10, eps=1e-2, ridge=1e-6),
        scope="global",
    )


def _adam(lr: float, beta: float, beta2: float, eps: float) -> Recipe:
    return Recipe(
        name="adam",
        lr=lr,
        moment=RawEMA(beta=beta),
        curvature=SecondMoment(beta=beta2),
        rectifier=SquareRoot(eps=eps),
        decay=AdamWDecay(weight_decay=0.0),
    )
