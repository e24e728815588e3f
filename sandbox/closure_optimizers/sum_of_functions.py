"""The Sum of Functions Optimizer (Sohl-Dickstein, Poole and Ganguli 2014): one quadratic model for each of N fixed batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from sandbox.blocks.number import Interval
from sandbox.closure_optimizers import models
from sandbox.closure_optimizers.models import Models
from sandbox.closure_optimizers.one_vector import OneVector
from sandbox.curvature import hessian
from sandbox.utils import generators, suggest

SELECTIONS = ("distance", "cyclic", "random")


class SFO(OneVector):
    """θ ← θ - η s H⁻¹ Σ_i [g_i + H_i (θ - θ_i)],  H = Σ_i H_i,  for the sum of N functions f_i.

    g_i is the gradient of f_i at the point θ_i where it was last seen, H_i = λ_i I + B_iᵀ diag(c_i) B_i its BFGS Hessian from
    its last pairs of steps and gradient changes.  Each step evaluates one f_i, renews its model and goes to the sum's minimum.

        batches = list(loader)
        optimizer = sandbox.closure_optimizers.SFO(model.parameters(), count=len(batches))
        for _ in range(passes * len(batches)):
            optimizer.step(lambda i: loss(model, batches[i]))     # fixed batches; the step does backward()

    params: tensors that need gradients, in one group.  count: N; 25 or more work best.  lr: η.
    memory: pairs kept for each f_i, at least 1.  active: the number of f_i with which it begins.  Another joins where the
    gradients' standard error exceeds their mean, both in the norm of H⁻¹, after a step that failed, or after a pass without a
    new one.
    curvature: λ_i of the first ones.  It should be large: the first step is about the gradient over it.
    selection: which f_i comes after those seen less than twice.  "distance": the one whose θ_i is farthest from θ, in H or each
    in its H_i, by the toss of a coin; "cyclic"; "random".  seed: of all that is drawn.
    longest: no step is longer than this many times the mean of those before, from the second pass on.  shortest: nor shorter.

    A step has failed where f_i or its gradient is not finite, where f_i rose above its model by more than the other functions
    can have gained, or, new, lies three standard deviations above the others.  s is then halved (it goes back to 1 in the
    course of a pass), f_i is evaluated again at the point before, and the parameters return there unless it is worse.  A loss
    10 times farther off than the model said is first approached to 1 %, up to 10 times.

    Everything is held in coordinates of an orthonormal basis P (n, K), K = 3N + 3 or all n dimensions where these are fewer.
    It grows by each new gradient; when full it shrinks to the span of all g_i and θ_i, and pairs lose what lies outside.
    State elements per parameter: K + 1.  A step costs a gradient (two or more where it fails), about 8 nK operations,
    once in N steps 40 nN², and O(K³).  All of the state is tensors, the first parameter's; coordinates are float64.
    Differs from the authors' program: pairs never reach back before a function's first evaluation, P has no random columns,
    what is not finite never enters the models, and a step that failed keeps both of its gradients.

    Raises ValueError for several groups and values out of range, RuntimeError for a loss without a graph, FloatingPointError
    where a loss is not finite at the point before, either.  After an error the parameters are what they were before the step.
    """

    by_number = True  # the closure takes the number of a fixed batch

    def __init__(
        self,
        params: Iterable[Any],
        count: int,
        lr: float = 1.0,
        *,
        memory: int = 10,
        active: int = 2,
        curvature: float = 1e5,
        selection: str = "distance",
        longest: float = 10.0,
        shortest: float = 1e-8,
        seed: int = 0,
    ) -> None:
        for name, size in {"count": count, "memory": memory, "active": active}.items():
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise ValueError(f"SFO: {name} must be a whole number of at least 1, got {size!r}")
        numbers = {"lr": lr, "curvature": curvature, "longest": longest, "shortest": shortest}
        for name, value in numbers.items():
            if isinstance(value, bool) or value not in Interval("(0, inf)"):
                raise ValueError(f"SFO: {name} must lie in (0, inf), got {value!r}")
        if selection not in SELECTIONS:
            raise ValueError(suggest.unknown("selection of SFO", selection, SELECTIONS))
        options = {"lr": lr, "selection": selection, "longest": longest, "shortest": shortest, "seed": int(seed)}
        super().__init__(params, options)
        chosen = torch.randperm(count, generator=hessian.generator(int(seed), 0))[:active]
        state = models.begin(self._theta(), count, memory)
        state["active"][chosen], state["lam"][chosen] = True, curvature
        # calls of each function; counts of draws, turns, steps without a new function; s, the path's length, the expected gain
        state |= {name: torch.zeros((), dtype=torch.int64) for name in ("step", "calls", "draws", "turn", "waited")}
        state |= {name: torch.tensor(at, dtype=torch.float64) for name, at in (("scale", 1.0), ("length", 0.0), ("gain", 0.0))}
        state |= {"theta": self._theta(), "seen": torch.zeros(count, dtype=torch.int64)}
        self.state[self._first] = state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads as torch does, without its cast of the state to the parameters' dtype.  Raises ValueError for other shapes."""
        mine = self._state
        saved: dict[str, Tensor] = next(iter(state_dict["state"].values()), {})
        shapes = lambda state: {k: tuple(v.shape) for k, v in state.items()}  # noqa: E731
        if shapes(saved) != shapes(mine):
            raise ValueError("SFO: the checkpoint is of another count, memory or number of parameters")
        super().load_state_dict(state_dict)
        self.state[self._first] = {k: v.detach().to(mine[k], copy=True) for k, v in saved.items()}

    def replace(self, i: int) -> None:
        """Replaces function i by another one (a new batch): forgets its pairs and evaluates it next.

        Raises IndexError for an i outside 0 … count - 1.
        """
        s = self._state
        if not 0 <= i < len(s["f"]):
            raise IndexError(f"SFO: there are functions 0 to {len(s['f']) - 1}, got {i}")
        for name, value in (("S", 0.0), ("Y", 0.0), ("seen", 0), ("f", math.nan)):
            s[name][i] = value

    @torch.no_grad()
    def step(self, closure: Callable[[int], Tensor]) -> Tensor:  # type: ignore[override]
        """Makes one step; returns the loss of the function it looked at, closure(i), at the point from which it goes on."""
        s, model, N = self._state, Models(self._state), len(self._state["seen"])
        i, theta = self._choose(model), self._theta()
        try:
            learned, calls = self._look(closure, i, model, theta)
        except BaseException:
            self._put(theta)
            raise
        failed, (t, loss, g) = calls > 1, learned[-1]
        # s ← s/2, or 1/N + (1 - 1/N) s
        s["scale"].copy_((s["scale"] / 2 if failed else 1 / N + s["scale"] * (1 - 1 / N)).clamp(min=1e-5))
        s["calls"] += calls
        s["seen"][i] += calls
        model.span([each for _, _, each in learned])
        x_old, move = s["x_old"].clone(), s["x"] - s["x_old"]
        for share, f, each in learned:
            model.record(i, x_old + share * move, f, (s["P"].T @ each).double())
        s["x"].copy_(s["X"][i])
        s["length"] += t * float(move.norm())
        model.fit(i)
        self._move(model, failed, _between(s["theta"], theta, t))
        for p, v in zip(self._params, self._apart(g), strict=True):
            p.grad = v.to(p, copy=True)
        s["step"] += 1
        return self._params[0].new_tensor(loss)

    def _look(self, closure: Any, i: int, model: Models, theta: Tensor) -> tuple[list[tuple[float, float, Tensor]], int]:
        """Returns what is learned of f_i, as (t, f, g) at θ_old + t (θ - θ_old), the last where to go on, and the calls."""
        s, mark, calls = self._state, generators.states(), 0

        def at(t: float) -> tuple[float, float, Tensor]:
            nonlocal calls
            if calls:
                self._put(_between(s["theta"], theta, t))
                generators.put(mark)  # f_i stays one function
            calls += 1
            with torch.enable_grad():
                loss = closure(i)
                grads = hessian.gradients(loss, self._params, create_graph=False)
            return t, float(loss.detach()), self._flat(grads)

        new = at(1.0)
        if not self._is_failure(i, model, new):
            return [new], calls
        after, before = generators.states(), at(0.0)
        if not _finite(before):
            raise FloatingPointError(f"NaN or infinity in function {i} or its gradient also at the point before the last step")
        evaluated = bool(s["f"][i].isfinite())
        expected = abs(model.predicted(i) - float(s["f"][i])) if evaluated else abs(new[1] - before[1])
        expected = max(expected, models.TINY) if math.isfinite(expected) else models.TINY
        for _ in range(10):
            if _finite(new) and new[1] - before[1] < 10 * expected:
                break
            new = at(0.01 * new[0])
        generators.put(after)
        if not _finite(new):
            return [before], calls
        return ([before, new] if new[1] < before[1] else [new, before]), calls

    def _is_failure(self, i: int, model: Models, new: tuple[float, float, Tensor]) -> bool:
        s, f = self._state, new[1]
        if not _finite(new):
            return True
        if s["seen"][i] == 0:
            others = s["f"][(s["seen"] > 1).to(s["f"].device)]
            return len(others) > 0 and f > float(others.mean() + 3 * others.std(correction=0))
        # f - q_i > what the others gain = the whole gain - (f_i - q_i)
        f_i, q_i = float(s["f"][i]), model.predicted(i)
        return f > f_i and f - q_i > float(s["gain"]) - (f_i - q_i)

    def _choose(self, model: Models) -> int:
        s, selection = self._state, self.param_groups[0]["selection"]
        active = s["active"].cpu()
        once, never = active & (s["seen"] == 1), active & (s["seen"] == 0)
        if bool(once.any()):
            return int(once.nonzero()[0])
        if bool(never.any()):
            return self._draw(never)
        if selection == "random":
            return self._draw(active)
        if selection == "cyclic":
            i = int(active.nonzero()[int(s["turn"])])
            s["turn"].copy_((s["turn"] + 1) % active.sum())
            return i
        in_sum, D = self._uniform() < 0.5, s["x"] - s["X"]
        distances = ((D @ model.hessian()) * D).sum(1) if in_sum else model.squares()
        distances = distances.masked_fill(~s["active"], -math.inf)
        if in_sum and float(distances.max()) < models.TINY and not bool(active.all()):  # all have been seen right here
            i = self._draw(~active)
            s["active"][i] = True
            return i
        return int(distances.argmax())

    def _move(self, model: Models, failed: bool, theta: Tensor) -> None:
        """Goes from θ to the minimum of the sum of models; adds another function where one should join."""
        s, group, active = self._state, self.param_groups[0], self._state["active"]
        H, G = model.hessian(), s["G"][active]
        solved = torch.linalg.solve(H, torch.cat([model.gradient()[None], G]).T).T
        # -η s H⁻¹ Σ_i [g_i + H_i (θ - θ_i)], within the limits of length
        d = -group["lr"] * float(s["scale"]) * solved[0]
        length = float(d.norm())
        if 0 < length < group["shortest"]:
            d, length = d * (group["shortest"] / length), group["shortest"]
        limit = group["longest"] * float(s["length"]) / int(s["calls"])
        if int(s["calls"]) > len(active) and length > limit > 0:
            d = d * (limit / length)
        s["theta"].copy_(theta)
        s["x_old"].copy_(s["x"])
        s["x"] += d
        self._put(theta + s["P"] @ d.to(theta))
        s["gain"].fill_(0.5 * float(d @ H @ d))
        # another function joins where Σ_i |g_i - ḡ|²/(a(a-1)) ≥ |ḡ|², the squares in H⁻¹
        a, R = len(G), G - G.mean(0)
        error = float((R * (solved[1:] - solved[1:].mean(0))).sum()) / max(a * (a - 1), 1)
        noisy = a > 1 and error >= float(G.mean(0) @ solved[1:].mean(0))
        joins = failed or noisy or int(s["waited"]) > a
        s["waited"] += 1
        if joins and a < len(active) and int(s["seen"][active.cpu()].min()) >= 2:
            s["waited"].zero_()
            active[self._draw(~active.cpu())] = True

    def _uniform(self) -> float:
        """Returns a number in [0, 1), from the seed and the number of draws alone."""
        self._state["draws"] += 1
        generator = hessian.generator(self.param_groups[0]["seed"], int(self._state["draws"]))
        return float(torch.rand((), generator=generator, dtype=torch.float64))

    def _draw(self, among: Tensor) -> int:
        places = among.nonzero()[:, 0]
        return int(places[int(self._uniform() * len(places))])

    @property
    def _first(self) -> Tensor:
        return self.param_groups[0]["params"][0]

    @property
    def _state(self) -> dict[str, Any]:
        return self.state[self._first]

    def _theta(self) -> Tensor:
        return self._flat([p.detach() for p in self._params])

    def _flat(self, tensors: list[Tensor | None]) -> Tensor:
        vector = super()._flat(tensors)
        return vector.to(torch.promote_types(vector.dtype, torch.float32))

    def _put(self, vector: Tensor) -> None:
        for p, v in zip(self._params, self._apart(vector), strict=True):
            p.copy_(v)


def _finite(seen: tuple[float, float, Tensor]) -> bool:
    return math.isfinite(seen[1]) and bool(seen[2].isfinite().all())


def _between(a: Tensor, b: Tensor, t: float) -> Tensor:
    """a + t (b - a), exact at both ends."""
    return b if t == 1 else a + t * (b - a)
