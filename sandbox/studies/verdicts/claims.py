"""The paper's 41 claims in few words, and what decides each here."""

from __future__ import annotations

import dataclasses

from sandbox.studies import f03_transfer, f05_decay, f08_cost, f11_warmup, f14_floor
from sandbox.studies.verdicts.deciders import Better, Cases, Close, Decider, Every, Given, Open, Same, Steadier, reads
from sandbox.studies.verdicts.quantities import AtTrainingLoss, Best, Combined, End, minus, slope, spread


@dataclasses.dataclass(frozen=True)
class Claim:
    """number: as in the list of the paper's claims.  text: the claim.  by: what decides it."""

    number: int
    text: str
    by: Decider


_FIRST_ORDER = ("sgd", "adam", "radam", "adabelief")
_ADAMS = _FIRST_ORDER[1:]


def _accuracy(study: str, part: str, arm: str) -> End:
    return End(study, part, arm, "test_metric", higher=True)


def _training(study: str, part: str, arm: str, share: float = 1.0) -> End:
    return End(study, part, arm, "train_loss", log=True, share=share)


def _toy(arm: str) -> End:
    return _training("F1", "main", arm)


def _toy_seconds(arm: str) -> End:
    return End("F1", "main", arm, "seconds_a_step", log=True)


def _toy_words(arm: str) -> End:
    return End("F1", "main", arm, "state_words")


def _images(arm: str) -> End:
    return _accuracy("F2", "milestones", arm)


def _image_loss(arm: str, share: float = 1.0) -> End:
    return _training("F2", "milestones", arm, share)


def _language(arm: str) -> End:
    return End("F6", "main", arm, "test_loss")


def _translation(arm: str) -> End:
    return End("F7", "main", arm, "test_metric")


def _part(arm: str, part: str = "digits-mlp") -> End:
    """Rates are chosen by validation loss, so arms are compared by the loss on data that they have not seen either."""
    return End("F12", part, arm, "test_loss", log=True)


def _on_and_off_the_floor(*others: str) -> Cases:
    """Returns whether Apollo is better than others with nearly all coordinates on the floor, and with few: β = 0, any batch."""
    off = [f"digits-mlp β=0 batch {size}" for size in f14_floor.BATCHES]
    ends = {part: tuple(End("F14", part, arm, "test_loss", log=True) for arm in ("apollo", *others)) for part in off}
    return Cases((
        ("on the floor, β = 0.9", Better(_part("apollo"), tuple(map(_part, others)))),
        ("off it, β = 0", Every(tuple(Better(mine, tuple(rest)) for mine, *rest in ends.values()))),
    ))  # fmt: skip


def _beta(task: str, beta: str, batch: int) -> End:
    return End("F14", f"{task} β={beta} batch {batch}", "apollo", "test_loss", log=True, name=f"β={beta}")


def _estimate(column: str, arm: str, part: str = "batches of 64") -> End:
    return End("F15", part, arm, column, log=True, name=f"{column} of {arm}, {part}")


def _floors(arm: str) -> End:
    return _training("F12", "floors", arm)


def _seconds(part: str, arm: str) -> End:
    return End("F8", part, arm, "seconds_a_step", log=True)


def _growth(arm: str) -> Combined:
    return slope(f"slope of {arm}'s time", f08_cost.SIZES, tuple(_seconds(f"n={n}", arm) for n in f08_cost.SIZES))


def _words(n: int) -> End:
    return End("F8", f"n={n}", "apollo", "state_words")


def _range(arm: str, decay: str = "") -> Combined:
    """Over the four rates, with γ made up for or, where `decay` says so, as it is; at the best rate γ is the same in both."""
    cells = tuple(_accuracy("F4", "main", f"{arm} ×{a}{'' if a == '1' else decay}") for a in ("0.2", "1", "2", "10"))
    return spread(f"range of {arm}{decay}", *cells)


def _warmed(arm: str) -> tuple[End, End]:
    """Without warm-up and with it."""
    none, some = (_accuracy("F11", "main", f"{arm} w={w}") for w in f11_warmup.LENGTHS)
    return none, some


def _gain(arm: str) -> Combined:
    none, some = _warmed(arm)
    return minus(some, none)


def _forms(arm: str) -> Combined:
    return spread(f"{arm}: l2 or decoupled", *(_accuracy("F5", "form", f"{arm} {form}") for form in ("l2", "decoupled")))


def _cells(*rates: str) -> Best:
    names = tuple(a.name for a in f03_transfer.STUDY.parts("cpu")[0].arms if a.name.startswith("apollo"))
    chosen = tuple(name for name in names if not rates or name.split()[1] in rates)
    return Best(f"apollo's best of {len(chosen)}", "F3", "main", chosen, "test_metric", "validation_metric", higher=True)


def _first_order(quantity: object) -> tuple:
    return tuple(quantity(arm) for arm in _FIRST_ORDER)  # type: ignore[operator]


_CONDITIONS = {"ε with 1/σ": "ε with 1/σ", "ε fixed, as in Algorithm 1": "ε fixed", "every coordinate on the floor": "B = 0"}
_COUPLED = Cases(tuple((condition, Same("F10", (part,), ("σ=1", "σ=0.01"), 1e-9)) for condition, part in _CONDITIONS.items()))
_AVERAGING = Cases((
    *((f"digits' MLP, batches of {n}", Better(_beta("digits-mlp", "0.9", n), (_beta("digits-mlp", "0", n),)))
      for n in f14_floor.BATCHES),
    *((f"{task}, batches of 64", Better(_part("apollo", task), (_part("no-momentum", task),)))
      for task in ("digits-mlp", "digits-cnn")),
    ("LeNet, batches of 8", Better(_beta("lenet-fashion", "0.9", 8), (_beta("lenet-fashion", "0", 8),))),
))  # fmt: skip
_FIXED = ", γ as it is"
_STRENGTHS = tuple(f"γ×{a:g}" for a in f05_decay.SMALL_FACTORS)

CLAIMS = (
    Claim(1, "Apollo beats SGD and Adam's family in convergence and generalisation on three tasks",
          Every((Better(_image_loss("apollo"), _first_order(_image_loss)), Better(_images("apollo"), _first_order(_images)),
                 Better(_language("apollo"), _first_order(_language)),
                 Better(_translation("apollo"), _first_order(_translation))))),
    Claim(2, "State and cost of an update are linear in the parameters, as Adam's",
          Every((Close(_words(f08_cost.SIZES[0]), _words(f08_cost.SIZES[-1]), 0.01),
                 Close(_growth("apollo"), 1.0, 0.2), Close(_growth("apollo"), _growth("adam"), 0.2)))),
    Claim(3, "No earlier nonconvex quasi-Newton method consistently beats adaptive methods: SdLBFGS does not beat Adam",
          Better(_toy("adam"), (_toy("sdlbfgs m=100"),))),
    Claim(4, "SGD's rate is delicate",
          Better(_range("adam", _FIXED), (_range("sgd", _FIXED),))),
    Claim(5, "AdaGrad degrades on dense problems through its growing sum",
          Better(_part("rmsprop", "sums"), (_part("adagrad", "sums"),))),
    Claim(6, "Adam's good hyperparameters vary little from task to task",
          Steadier((("F1", "main"), ("F6", "main"), ("F7", "main")), "adam", "sgd", 0.5)),
    Claim(7, "Adaptive methods may generalise worse: a higher validation loss at equal training loss",
          Better(AtTrainingLoss("F2", "milestones", "sgd", _FIRST_ORDER),
                 tuple(AtTrainingLoss("F2", "milestones", arm, _FIRST_ORDER) for arm in _ADAMS))),
    Claim(8, "Minibatch gradients can make the Hessian estimate wrong",
          Every(tuple(Better(_estimate("relative_error", arm, "full batches"), (_estimate("relative_error", arm),))
                      for arm in ("apollo", "apollo β=0")))),
    Claim(9, "A secant equation over all parameters is too loose; one per parameter tensor is a good compromise",
          _on_and_off_the_floor(*(f"{scope}-secant" for scope in ("global", "channel", "coordinate")))),
    Claim(10, "The stepsize correction reduces variance: of B over minibatches, over its size, each method on its own path",
          Better(_estimate("variance", "apollo"), (_estimate("variance", "no-stepsize-correction"),))),
    Claim(11, "Averaging gradients is better: β = 0.9 than β = 0, in test loss", _AVERAGING),
    Claim(12, "The absolute value is right for negative curvature", _on_and_off_the_floor("max(B, σ)")),
    Claim(13, "Rectification keeps steps bounded: a lower floor hurts at equal η, not at equal η/σ",
          Every((Better(_floors("apollo"), (_floors("σ=1e-05, η"),)),
                 Close(_floors("apollo"), _floors("σ=1e-05, η/σ"), 0.01)))),
    Claim(14, "η and σ matter only through their ratio", _COUPLED),
    Claim(15, "So only η needs tuning", _COUPLED),
    Claim(16, "Warm-up helps Apollo, and the others less",
          Every((Better(_warmed("apollo")[1], _warmed("apollo")[:1]),
                 Better(_gain("apollo"), _first_order(_gain))))),
    Claim(17, "Starting at zero makes d and B too small at first",
          Better(_estimate("first_B", "apollo"), (_estimate("last_B", "apollo"),))),
    Claim(18, "The absolute value costs next to nothing: less than 5 % of an update",
          Close(_seconds("update", "apollo"), _seconds("update", "apollo max(B, σ)"), 0.05)),
    Claim(19, "AdaHessian costs much more", Better(_seconds("resnet", "apollo"), (_seconds("resnet", "adahessian"),))),
    Claim(20, "SdLBFGS needs a history of 100 or more", Better(_toy("sdlbfgs m=100"), (_toy("sdlbfgs m=10"),))),
    Claim(21, "Apollo beats the first-order methods in speed and accuracy on images",
          Every((Better(_image_loss("apollo"), _first_order(_image_loss)), Better(_images("apollo"), _first_order(_images))))),
    Claim(22, "The strength of decay depends on η even when decoupled: Adam's accuracy moves less where γ makes up for η",
          Better(_range("adam"), (_range("adam", _FIXED),))),
    Claim(23, "With γ made up for, all but SGD are robust over a 50-fold range of η: accuracy moves by less than ten points",
          Every(tuple(Close(_range(arm), 0.0, 0.1) for arm in ("apollo", "adam", "radam")))),
    Claim(24, "Adam's quick training comes from weak regularisation: Adam* trains faster and is less accurate",
          Every((Better(_image_loss("adam*", 0.5), (_image_loss("adam", 0.5),)),
                 Better(_images("adam"), (_images("adam*"),))))),
    Claim(25, "Comparisons that leave γ alone mislead: Adam* trains faster than Apollo, Adam slower",
          Given(Better(_image_loss("adam*"), (_image_loss("adam"),)),
                Every((Better(_image_loss("adam*"), (_image_loss("apollo"),)),
                       Better(_image_loss("apollo"), (_image_loss("adam"),)))),
                "in F2 a weaker decay does not change Adam's training beyond its interval")),
    Claim(26, "L2 and decoupled decay are close for Apollo, not for Adam", Better(_forms("apollo"), (_forms("adam"),))),
    Claim(27, "At each strength of decay Apollo trains fastest",
          Every(tuple(Better(_training("F5", "strength", f"apollo {g}"),
                             tuple(_training("F5", "strength", f"{arm} {g}") for arm in _FIRST_ORDER)) for g in _STRENGTHS))),
    Claim(28, "AdaBelief with L2 decay is worse than with decoupled decay",
          Better(_accuracy("F5", "form", "adabelief decoupled"), (_accuracy("F5", "form", "adabelief l2"),))),
    Claim(29, "Apollo's hyperparameters carry over to another data set, γ apart: less than 0.6 points are lost",
          Close(_cells("η×1"), _cells(), 0.006)),
    Claim(30, "Apollo is slower than Adam and RAdam at first, then faster",
          Every(tuple(relation for arm in ("adam", "radam") for relation in (
              Better(_training("F6", "main", arm, 0.2), (_training("F6", "main", "apollo", 0.2),)),
              Better(_training("F6", "main", "apollo"), (_training("F6", "main", arm),)))))),
    Claim(31, "Apollo's perplexity is lower than Adam's and RAdam's, AdaBelief's and SGD's",
          Better(_language("apollo"), _first_order(_language))),
    Claim(32, "Adam and RAdam have sudden losses in every run, Apollo never",
          Open("rows hold eight evaluations of a run, not every loss")),
    Claim(33, "AdaBelief's gain on LSTMs is mainly its ε",
          Better(_language("adabelief"), tuple(_language(f"adabelief ε={e}") for e in ("1e-08", "1e-16")))),
    Claim(34, "SGD is far behind Adam on Transformers", Better(_translation("adam"), (_translation("sgd"),))),
    Claim(35, "Apollo beats every baseline on a Transformer", Better(_translation("apollo"), _first_order(_translation))),
    Claim(36, "RAdam needs no warm-up: less than 0.6 points are gained", Close(_gain("radam"), 0.0, 0.006)),
    Claim(37, "Clipping tensor by tensor suits Apollo better than clipping all gradients together",
          Better(End("F9", "language", "parameter 0.5", "test_loss"), (End("F9", "language", "global 1", "test_loss"),))),
    Claim(38, "Apollo beats SdLBFGS in convergence, time and memory",
          Every(tuple(Better(end("apollo"), (end("sdlbfgs m=100"),)) for end in (_toy, _toy_seconds, _toy_words)))),
    Claim(39, "σ only rescales η", _COUPLED),
    Claim(40, "The modified floor makes Apollo invariant to the scale of the loss",
          Same("F13", ("2^-10", "2^0", "2^10"), ("scale-invariant",))),
    Claim(41, "The disadvantage of second-order methods grows with model and GPUs", Open("needs several GPUs")),
)  # fmt: skip


def numbers(study: str) -> list[int]:
    """Numbers of the claims that a study has a say in."""
    return [claim.number for claim in CLAIMS if study in reads(claim.by)]
