"""The methods as literal NumPy recursions, written from the papers and their authors' code, each keeping its own d."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


class Apollo:
    """Algorithm 1, with everything that mathematics says varies, as plain code; state per tensor m, B, d, g."""

    def __init__(
        self,
        theta: list[np.ndarray],
        *,
        beta: float = 0.9,
        eps: float = 1e-4,
        sigma: float = 0.01,
        floor: str = "absolute",
        belief_eps: float = 1e-4,
        decay: str = "none",
        gamma: float = 0.0,
        bias_correction: bool = True,
        damping: float = 0.0,
        stepsize_correction: bool = True,
        scope: str = "parameter",
        hessian_ema: float | None = None,
        hessian_ema_correction: bool = True,
        clip: float | None = None,
        ceiling: float | None = None,
    ) -> None:
        self.__dict__.update({k: v for k, v in locals().items() if k not in ("self", "theta")})
        self.theta = [x.copy() for x in theta]
        zeros = lambda: [np.zeros_like(x) for x in theta]  # noqa: E731
        self.m, self.B, self.d, self.g, self.Bbar, self.D = zeros(), zeros(), zeros(), zeros(), zeros(), zeros()
        self.lr_old = None
        self.t = 0

    def groups(self, i: int, x: list[np.ndarray], reduce: Callable) -> np.ndarray:
        """Σ or max over the scope of tensor i, broadcast."""
        if self.scope == "global":
            return reduce(np.concatenate([v.ravel() for v in x]))
        v = x[i]
        if self.scope == "parameter":
            return reduce(v)
        if self.scope == "coordinate" or v.ndim < 2:
            return v.copy()
        return np.stack([np.full_like(row, reduce(row)) for row in v])

    def step(self, grads: list[np.ndarray], lr: float) -> None:
        beta, n = self.beta, len(grads)
        t = self.t  # the paper's: 0, 1, 2, …
        if self.decay == "l2":
            grads = [g + self.gamma * x for g, x in zip(grads, self.theta, strict=True)]
        if self.clip is not None:
            grads = [g * min(1.0, self.clip / np.sqrt((g**2).sum())) for g in grads]
        new_m = []
        for m, g in zip(self.m, grads, strict=True):
            if self.bias_correction:
                new_m.append(beta * (1 - beta**t) / (1 - beta ** (t + 1)) * m + (1 - beta) / (1 - beta ** (t + 1)) * g)
            else:
                new_m.append(beta * m + (1 - beta) * g)
        y = [new - old for new, old in zip(new_m, self.m, strict=True)]
        d4 = [d**4 for d in self.d]
        dy = [d * v for d, v in zip(self.d, y, strict=True)]
        dBd = [d * B * d for d, B in zip(self.d, self.B, strict=True)]
        new_B = []
        for i in range(n):
            norm4 = self.groups(i, d4, np.sum)
            numerator = self.groups(i, dy, np.sum)
            if not self.stepsize_correction and self.lr_old is not None:
                numerator = numerator / self.lr_old
            numerator = numerator + self.groups(i, dBd, np.sum)
            denominator = (norm4**0.25 + self.eps) ** 4
            alpha = np.where(norm4 > 0, numerator / np.where(norm4 > 0, denominator, 1.0), 0.0)
            new_B.append(self.B[i] - (1 - self.damping) * alpha * self.d[i] ** 2)
        self.B = new_B
        D = []
        difference = [np.abs(g - old) for g, old in zip(grads, self.g, strict=True)]
        surprise = [np.abs(g - m) for g, m in zip(grads, self.m, strict=True)]
        for i in range(n):
            B = self.B[i]
            if self.hessian_ema is not None:
                b = self.hessian_ema
                if self.hessian_ema_correction:
                    self.Bbar[i] = b * (1 - b**t) / (1 - b ** (t + 1)) * self.Bbar[i] + (1 - b) / (1 - b ** (t + 1)) * B
                else:
                    self.Bbar[i] = b * self.Bbar[i] + (1 - b) * B
                B = self.Bbar[i]
            if self.floor == "absolute":
                D.append(np.maximum(np.abs(B), self.sigma))
            elif self.floor == "soft":
                D.append(np.sqrt(B**2 + self.sigma**2))
            elif self.floor == "scale-invariant":
                D.append(np.maximum(np.abs(B), self.sigma * self.groups(i, difference, np.max)))
            elif self.floor == "belief":
                a = (1 - beta) / (1 - beta ** (t + 1))
                D.append(np.maximum(np.abs(B), self.groups(i, surprise, np.max)) + self.belief_eps / a)
            if self.ceiling is not None:
                D[i] = np.minimum(D[i], self.ceiling)
                if self.lr_old is not None:
                    D[i] = np.maximum(D[i], self.D[i] * lr / self.lr_old)
        d = [m / q for m, q in zip(new_m, D, strict=True)]
        if self.decay == "decoupled":
            d = [v + self.gamma * x for v, x in zip(d, self.theta, strict=True)]
        if self.decay == "stable":
            d = [v + self.gamma / q.mean() * x for v, q, x in zip(d, D, self.theta, strict=True)]
        self.theta = [x - lr * v for x, v in zip(self.theta, d, strict=True)]
        self.m, self.d, self.D, self.g, self.lr_old = new_m, d, D, grads, lr
        self.t += 1


class AdaBelief:
    """Zhuang et al. 2020, the authors' code: ε accumulates in s where `accumulate`."""

    def __init__(self, theta: list[np.ndarray], *, beta1=0.9, beta2=0.999, eps=1e-8, accumulate=True, gamma=0.0) -> None:
        self.theta = [x.copy() for x in theta]
        self.m, self.s = [np.zeros_like(x) for x in theta], [np.zeros_like(x) for x in theta]
        self.beta1, self.beta2, self.eps, self.accumulate, self.gamma, self.t = beta1, beta2, eps, accumulate, gamma, 0

    def step(self, grads: list[np.ndarray], lr: float) -> None:
        self.t += 1
        for i, g in enumerate(grads):
            self.theta[i] = self.theta[i] * (1 - lr * self.gamma)
            self.m[i] = self.beta1 * self.m[i] + (1 - self.beta1) * g
            self.s[i] = self.beta2 * self.s[i] + (1 - self.beta2) * (g - self.m[i]) ** 2
            if self.accumulate:
                self.s[i] = self.s[i] + self.eps
            denominator = np.sqrt(self.s[i]) / np.sqrt(1 - self.beta2**self.t) + self.eps
            self.theta[i] = self.theta[i] - lr / (1 - self.beta1**self.t) * self.m[i] / denominator


class AdaHessian:
    """Yao et al. 2021, the authors' code; `h` is z ⊙ Hz."""

    def __init__(self, theta, *, beta1=0.9, beta2=0.999, eps=1e-4, power=1.0, spatial=False, gamma=0.0) -> None:
        self.theta = [x.copy() for x in theta]
        self.m, self.v = [np.zeros_like(x) for x in theta], [np.zeros_like(x) for x in theta]
        self.beta1, self.beta2, self.eps, self.power, self.spatial = beta1, beta2, eps, power, spatial
        self.gamma, self.t = gamma, 0

    def step(self, grads, diagonals, lr: float) -> None:
        self.t += 1
        for i, (g, h) in enumerate(zip(grads, diagonals, strict=True)):
            if self.spatial and h.ndim == 4:
                h = np.broadcast_to(np.abs(h).mean(axis=(2, 3), keepdims=True), h.shape)
            self.theta[i] = self.theta[i] * (1 - lr * self.gamma)
            self.m[i] = self.beta1 * self.m[i] + (1 - self.beta1) * g
            self.v[i] = self.beta2 * self.v[i] + (1 - self.beta2) * h * h
            denominator = (np.sqrt(self.v[i]) / np.sqrt(1 - self.beta2**self.t)) ** self.power + self.eps
            self.theta[i] = self.theta[i] - lr * (self.m[i] / (1 - self.beta1**self.t)) / denominator
