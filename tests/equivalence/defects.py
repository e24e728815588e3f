"""Optimizers written by hand as papers print them, and the same with one defect each; none shares code with the package."""

import torch


class Loop(torch.optim.Optimizer):
    """One tensor after another; a subclass has `update(group, state, p, g)`."""

    more = {}

    def __init__(self, params, lr=1e-3, **options):
        super().__init__(params, {"lr": lr, **self.more, **options})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    state = self.state[p]
                    state["t"] = state.get("t", 0) + 1
                    self.update(group, state, p, p.grad)


class Adam(Loop):
    more = {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}

    def update(self, group, s, p, g):
        self.decay_first(group, s, p)
        g = self.gradient(group, p, g)
        b1, b2 = self.betas(group)
        s["m"] = b1 * s.get("m", 0) + (1 - b1) * g
        s["v"] = b2 * s.get("v", 0) + (1 - b2) * g * g
        p -= self.rate(group, s) * self.numerator(s, b1) / self.root(s, b2, group["eps"])
        self.decay_last(group, s, p)

    def betas(self, group):
        return group["betas"]

    def rate(self, group, s):
        return group["lr"]

    def gradient(self, group, p, g):
        return g

    def decay_first(self, group, s, p):
        p *= 1 - group["lr"] * group["weight_decay"]

    def decay_last(self, group, s, p):
        pass

    def numerator(self, s, b1):
        return s["m"] / (1 - b1 ** s["t"])

    def root(self, s, b2, eps):
        return (s["v"] / (1 - b2 ** s["t"])).sqrt() + eps


class EpsInside(Adam):
    def root(self, s, b2, eps):
        return (s["v"] / (1 - b2 ** s["t"]) + eps).sqrt()


class EpsBeforeCorrection(Adam):
    def root(self, s, b2, eps):
        return (s["v"].sqrt() + eps) / (1 - b2 ** s["t"]) ** 0.5


class EpsInsideBeforeCorrection(Adam):
    def root(self, s, b2, eps):
        return ((s["v"] + eps) / (1 - b2 ** s["t"])).sqrt()


class NoCorrectionOfV(Adam):
    def root(self, s, b2, eps):
        return s["v"].sqrt() + eps


class NoCorrectionOfM(Adam):
    def numerator(self, s, b1):
        return s["m"]


class NoCorrection(NoCorrectionOfM, NoCorrectionOfV):
    pass


class Coupled(Adam):
    def decay_first(self, group, s, p):
        pass

    def gradient(self, group, p, g):
        return g + group["weight_decay"] * p


class DecayAfter(Adam):
    def decay_first(self, group, s, p):
        pass

    def decay_last(self, group, s, p):
        p *= 1 - group["lr"] * group["weight_decay"]


class DecayUnscaled(Adam):
    def decay_first(self, group, s, p):
        p *= 1 - group["weight_decay"]


class DecayRelative(Adam):
    def __init__(self, params, lr=1e-3, **options):
        super().__init__(params, lr, **options)
        self.first = lr

    def decay_first(self, group, s, p):
        p *= 1 - group["weight_decay"] * group["lr"] / self.first


class OtherBeta(Adam):
    def betas(self, group):
        return group["betas"][0], 0.99


class OddBeta(Adam):
    def betas(self, group):
        return group["betas"][0], 0.9937


class FirstRateKept(Adam):
    def __init__(self, params, lr=1e-3, **options):
        super().__init__(params, lr, **options)
        self.first = lr

    def rate(self, group, s):
        return self.first

    def decay_first(self, group, s, p):
        p *= 1 - self.first * group["weight_decay"]


class MissingIsZero(Adam):
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        return super().step(closure)


class LookAhead(Adam):
    def gradient(self, group, p, g):
        self.g = g
        return g

    def numerator(self, s, b1):
        return (b1 * s["m"] + (1 - b1) * self.g) / (1 - b1 ** s["t"])


class AMSGrad(Adam):
    """The maximum before the correction, as torch.optim has it."""

    def root(self, s, b2, eps):
        s["top"] = torch.maximum(s.get("top", 0 * s["v"]), s["v"])
        return (s["top"] / (1 - b2 ** s["t"])).sqrt() + eps


class AMSGradAfter(Adam):
    def root(self, s, b2, eps):
        s["top"] = torch.maximum(s.get("top", 0 * s["v"]), s["v"] / (1 - b2 ** s["t"]))
        return s["top"].sqrt() + eps


class Single(Adam):
    """Computes in float32."""

    def root(self, s, b2, eps):
        return super().root(s, b2, eps).float().double()


class SGD(Loop):
    more = {"momentum": 0.9}

    def update(self, group, s, p, g):
        s["m"] = group["momentum"] * s.get("m", 0) + g
        p -= group["lr"] * s["m"]


class SGDLookAhead(SGD):
    def update(self, group, s, p, g):
        s["m"] = group["momentum"] * s.get("m", 0) + g
        p -= group["lr"] * (g + group["momentum"] * s["m"])


class SGDDampened(SGD):
    def update(self, group, s, p, g):
        s["m"] = group["momentum"] * s.get("m", 0) + (1 - group["momentum"]) * g
        p -= group["lr"] * s["m"]


class SGDRateInside(SGD):
    def update(self, group, s, p, g):
        s["m"] = group["momentum"] * s.get("m", 0) + group["lr"] * g
        p -= s["m"]


class Apollo(Loop):
    """Algorithm 1 of arXiv 2009.13586, without weight decay."""

    more = {"beta": 0.9, "eps": 1e-4}
    sign, sign_of_B = 1.0, 1.0

    def update(self, group, s, p, g):
        beta, t = group["beta"], s["t"]
        a = (1 - beta) / (1 - beta**t)
        m, d, B = s.get("m", 0 * p), s.get("d", 0 * p), s.get("B", 0 * p)
        new = (1 - a) * m + a * g
        y = self.sign * (new - m)
        norm = (d**4).sum() ** 0.25 + group["eps"]
        alpha = ((d * y).sum() + self.sign_of_B * (d * B * d).sum()) / norm**4
        s["B"] = B - alpha * d * d
        s["m"] = new
        s["d"] = new / self.floor(s["B"])
        p -= group["lr"] * s["d"]

    def floor(self, B):
        return B.abs().clamp(min=0.01)


class ApolloSign(Apollo):
    sign = -1.0


class ApolloOtherSign(Apollo):
    sign_of_B = -1.0


class ApolloSmooth(Apollo):
    def floor(self, B):
        return (B * B + 0.01**2).sqrt()


class Muon(Loop):
    more = {"momentum": 0.95}

    def __init__(self, params, lr=0.02, **options):
        params = list(params)
        if any(p.ndim != 2 for p in params):
            raise ValueError("matrices only")
        super().__init__(params, lr, **options)

    def update(self, group, s, p, g):
        mu = group["momentum"]
        s["m"] = mu * s.get("m", 0) + (1 - mu) * g
        X = mu * s["m"] + (1 - mu) * g
        X = X / X.norm()
        for _ in range(5):
            A = X @ X.T
            X = 3.4445 * X + (-4.7750 * A + 2.0315 * A @ A) @ X
        p -= group["lr"] * self.scale(*p.shape) * X

    def scale(self, m, n):
        return max(1, m / n) ** 0.5


class MuonRms(Muon):
    def scale(self, m, n):
        return 0.2 * max(m, n) ** 0.5
