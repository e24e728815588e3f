"""The paper's 41 claims in few words, and what would decide each here."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Better:
    """`arm` is better than every one of `than`, by the paired difference of a column at the end of the final runs.

    column: of the rows.  higher: whether more is better.
    """

    study: str
    part: str
    arm: str
    than: tuple[str, ...]
    column: str
    higher: bool = False


@dataclasses.dataclass(frozen=True)
class Same:
    """Arms (of one part) or one arm (of several parts, its losses divided by 2^k) have equal training losses.

    tolerance: of the relative difference; 0 for bitwise.
    """

    study: str
    parts: tuple[str, ...]
    arms: tuple[str, ...]
    tolerance: float = 0.0


@dataclasses.dataclass(frozen=True)
class Open:
    """Nothing here decides it yet; `why` in a few words."""

    why: str


@dataclasses.dataclass(frozen=True)
class Claim:
    """number: as in the list of the paper's claims.  text: the claim.  by: what decides it."""

    number: int
    text: str
    by: Better | Same | Open


_FIRST_ORDER = ("sgd", "adam", "radam", "adabelief")


def _components(*than: str) -> Better:
    return Better("F12", "digits-mlp", "apollo", than, "train_loss")


CLAIMS = (
    Claim(1, "Apollo beats SGD and Adam's family in convergence and generalisation on three tasks",
          Open("needs F2, F6 and F7 together")),
    Claim(2, "State and cost of an update are linear in the parameters, as Adam's", Open("needs a range of sizes")),
    Claim(3, "No earlier nonconvex quasi-Newton method consistently beats adaptive methods", Open("SdLBFGS is missing")),
    Claim(4, "SGD is slow and its rate delicate", Open("needs the width of the range of good rates")),
    Claim(5, "AdaGrad degrades on dense problems through its growing sum", Open("no arm of AdaGrad")),
    Claim(6, "Adam's good hyperparameters vary little from task to task", Open("needs best rates across studies")),
    Claim(7, "Adaptive methods may generalise worse or fail from extreme rates", Open("needs gaps at equal training loss")),
    Claim(8, "Minibatch gradients can make the Hessian estimate wrong", Open("a matter of `apollo-sandbox curvature`")),
    Claim(9, "One secant equation a parameter is a good compromise",
          _components("global-secant", "channel-secant", "coordinate-secant")),
    Claim(10, "The stepsize correction reduces variance", Open("needs the variance of B over minibatches")),
    Claim(11, "Averaging gradients lowers the loss", _components("no-momentum")),
    Claim(12, "The absolute value is right for negative curvature", Open("needs max(B, σ) beside it")),
    Claim(13, "Rectification keeps steps bounded", Open("needs a range of floors")),
    Claim(14, "η and σ matter only through their ratio", Same("F10", ("ε with 1/σ",), ("σ=1", "σ=0.01"), 1e-9)),
    Claim(15, "So only η needs tuning", Same("F10", ("ε with 1/σ",), ("σ=1", "σ=0.01"), 1e-9)),
    Claim(16, "Apollo needs warm-up, which makes its training stable; others hardly gain",
          Better("F11", "main", "apollo w=100", ("apollo w=0",), "train_loss")),
    Claim(17, "Starting at zero makes d and B too small at first", Open("needs B over the first updates")),
    Claim(18, "The absolute value costs next to nothing", Open("needs a step with and without it")),
    Claim(19, "AdaHessian costs much more", Better("F8", "resnet", "apollo", ("adahessian",), "seconds_a_step")),
    Claim(20, "SdLBFGS needs a history of 100 or more", Open("SdLBFGS is missing")),
    Claim(21, "Apollo beats the first-order methods in speed and accuracy on both image sets",
          Better("F2", "milestones", "apollo", _FIRST_ORDER, "test_metric", higher=True)),
    Claim(22, "The strength of decay depends on η even when decoupled", Open("needs a grid of η and γ")),
    Claim(23, "With γ made up for, all are robust over a 50-fold range of η, but SGD at ten times its rate",
          Better("F4", "compensated", "apollo ×10", ("sgd ×10",), "test_metric", higher=True)),
    Claim(24, "Adam's quick training comes from weak regularisation",
          Better("F2", "milestones", "adam", ("adam*",), "test_metric", higher=True)),
    Claim(25, "Comparisons that leave γ alone mislead", Open("needs two orders of methods")),
    Claim(26, "L2 and decoupled decay are close for Apollo, not for Adam", Open("needs a difference of differences")),
    Claim(27, "At each strength of decay Apollo trains fastest",
          Better("F5", "strength", "apollo γ×1", tuple(f"{m} γ×1" for m in _FIRST_ORDER), "train_loss")),
    Claim(28, "AdaBelief with L2 decay is always worse than with decoupled decay", Open("no arm of AdaBelief with L2")),
    Claim(29, "Apollo's hyperparameters carry over to another data set, γ apart", Open("needs regret over a grid")),
    Claim(30, "Apollo is slower than Adam's family at first, then faster", Open("needs the crossing of two curves")),
    Claim(31, "Apollo's perplexity is lower than Adam's and RAdam's, AdaBelief's and SGD's",
          Better("F6", "main", "apollo", _FIRST_ORDER, "test_loss")),
    Claim(32, "Adam and RAdam have sudden losses in every run, Apollo never", Open("needs the loss of every update")),
    Claim(33, "AdaBelief's gain on LSTMs is mainly its ε",
          Better("F6", "epsilon", "adabelief ε=1e-12", ("adabelief ε=1e-08", "adabelief ε=1e-16"), "test_loss")),
    Claim(34, "SGD is far behind on Transformers", Better("F7", "main", "adam", ("sgd",), "test_metric")),
    Claim(35, "Apollo beats every baseline on a Transformer", Better("F7", "main", "apollo", _FIRST_ORDER, "test_metric")),
    Claim(36, "RAdam needs no warm-up", Open("needs a bound on the gain, not its presence")),
    Claim(37, "Clipping tensor by tensor suits Apollo better than clipping all gradients together",
          Better("F9", "language", "parameter 0.5", ("global 1",), "test_loss")),
    Claim(38, "Apollo beats SdLBFGS in convergence, time and memory", Open("SdLBFGS is missing")),
    Claim(39, "σ only rescales η", Same("F10", ("ε with 1/σ",), ("σ=1", "σ=0.01"), 1e-9)),
    Claim(40, "The modified floor makes Apollo invariant to the scale of the loss",
          Same("F13", ("2^-10", "2^0", "2^10"), ("scale-invariant",))),
    Claim(41, "The disadvantage of second-order methods grows with model and GPUs", Open("several GPUs")),
)  # fmt: skip
