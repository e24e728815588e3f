"""Random lives of an optimizer beside a plain NumPy recursion that keeps everything by tensor, its direction included."""

import copy
import io
import pickle
from collections import defaultdict

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

import sandbox

SHAPES = [(2,), (3, 2), (), (5,)]
NUMBERS = {
    "apollo": {"momentum": 0.9, "rectifier.sigma": 0.3, "curvature.eps": 1e-4},
    "soft-absolute": {"momentum": 0.9, "rectifier.sigma": 0.3, "curvature.eps": 1e-4},
    "apollow": {"momentum": 0.9, "rectifier.sigma": 0.3, "curvature.eps": 1e-4, "weight_decay": 0.1},
    "adamw": {"momentum": 0.9, "curvature.beta": 0.99, "rectifier.eps": 1e-3, "weight_decay": 0.1},
}
VALUES = {
    **dict.fromkeys(["momentum", "curvature.beta"], st.sampled_from([0.5, 0.9])),
    "rectifier.sigma": st.sampled_from([0.1, 0.3, 1.0]),
    **dict.fromkeys(["curvature.eps", "rectifier.eps"], st.sampled_from([1e-3, 1e-1])),
    "weight_decay": st.sampled_from([0.0, 0.2]),
}


class Literal:
    """One tensor: Apollo with its floors and decoupled decay, or AdamW, from the papers; d is kept, nothing is recalled."""

    def __init__(self, kind, theta):
        self.kind, self.theta = kind, np.array(theta)
        self.restart()

    def restart(self):
        self.t, self.m, self.B, self.d = 0, *(np.zeros_like(self.theta) for _ in range(3))

    def step(self, g, lr, n):
        self.t += 1
        beta, t = n["momentum"], self.t
        if self.kind == "adamw":
            self.m, self.B = beta * self.m + (1 - beta) * g, n["curvature.beta"] * self.B + (1 - n["curvature.beta"]) * g**2
            root = np.sqrt(self.B / (1 - n["curvature.beta"] ** t)) + n["rectifier.eps"]
            self.theta = self.theta * (1 - lr * n["weight_decay"]) - lr * self.m / (1 - beta**t) / root
            return
        m = (beta * (1 - beta ** (t - 1)) * self.m + (1 - beta) * g) / (1 - beta**t)
        d4 = (self.d**4).sum()
        top = (self.d * (m - self.m)).sum() + (self.d * self.B * self.d).sum()
        self.B = self.B - (top / (d4**0.25 + n["curvature.eps"]) ** 4 if d4 > 0 else 0.0) * self.d**2
        s = n["rectifier.sigma"]
        D = np.sqrt(self.B**2 + s**2) if self.kind == "soft-absolute" else np.maximum(np.abs(self.B), s)
        self.d, self.m = m / D, m
        if self.kind == "apollow":
            self.d = self.d + n["weight_decay"] * self.theta
        self.theta = self.theta - lr * self.d


class Lives(RuleBasedStateMachine):
    backends, kinds, threads = sandbox.backends.NAMES, tuple(NUMBERS), (1, 2)

    @initialize(data=st.data())
    def begin(self, data):
        self.before = torch.get_num_threads()
        self.kind, self.backend = data.draw(st.sampled_from(self.kinds)), data.draw(st.sampled_from(self.backends))
        self.draw = np.random.default_rng(data.draw(st.integers(0, 99)))
        self.groups = [[self.tensor(s) for s in SHAPES[:3]]]
        self.numbers = [dict(NUMBERS[self.kind], lr=0.05)]
        self.optimizer = self.made()

    def tensor(self, shape):
        theta = self.draw.normal(size=shape)
        return torch.tensor(theta, requires_grad=True), Literal(self.kind, theta)

    def made(self):
        each = [{"params": [p for p, _ in pairs], **n} for pairs, n in zip(self.groups, self.numbers, strict=True)]
        return sandbox.Optimizer(each, self.kind, backend=self.backend)

    def exchange(self, params):
        """The same models with other tensors, in order."""
        rest = iter(params)
        self.groups = [[(next(rest), model) for _, model in pairs] for pairs in self.groups]

    def pairs(self):
        return [pair for pairs in self.groups for pair in pairs]

    @rule(data=st.data(), times=st.integers(1, 2))
    def step(self, data, times):
        absent = data.draw(st.sets(st.integers(0, len(self.pairs()) - 1), max_size=1))
        for _ in range(times):
            place = 0
            for pairs, n in zip(self.groups, self.numbers, strict=True):
                for p, model in pairs:
                    g = model.theta * 2.0 + self.draw.normal(size=p.shape)
                    p.grad = None if place in absent else torch.tensor(g)
                    if place not in absent:
                        model.step(g, n["lr"], n)
                    place += 1
            self.optimizer.step()

    @rule(data=st.data())
    def change_a_number(self, data):
        i = data.draw(st.integers(0, len(self.groups) - 1))
        name = data.draw(st.sampled_from(sorted(self.numbers[i])))
        value = data.draw(VALUES.get(name, st.sampled_from([0.02, 0.1])))
        self.numbers[i][name] = self.optimizer.param_groups[i][name] = value

    @precondition(lambda self: len(self.groups) < 3)
    @rule()
    def add_a_group(self):
        self.groups.append([self.tensor(SHAPES[3])])
        self.numbers.append(dict(NUMBERS[self.kind], lr=0.02))
        self.optimizer.add_param_group({"params": [self.groups[-1][0][0]], **self.numbers[-1]})

    @precondition(lambda self: len(self.groups) > 1)
    @rule(first=st.booleans())
    def remove_a_group(self, first):
        for rows in (self.groups, self.numbers, self.optimizer.param_groups):
            del rows[0 if first else -1]

    @rule()
    def reverse_groups_and_members(self):
        for rows in (self.groups, self.numbers, self.optimizer.param_groups):
            rows.reverse()
        for pairs, group in zip(self.groups, self.optimizer.param_groups, strict=True):
            pairs.reverse()
            group["params"].reverse()

    @rule()
    def append_a_parameter(self):
        if len(self.groups[0]) < 5:
            self.groups[0].append(self.tensor(SHAPES[0]))
            self.optimizer.param_groups[0]["params"].append(self.groups[0][-1][0])

    @rule()
    def save_and_load(self):
        file = io.BytesIO()
        torch.save(self.optimizer.state_dict(), file)
        file.seek(0)
        self.exchange([p.detach().clone().requires_grad_() for p, _ in self.pairs()])
        self.optimizer = self.made()
        self.optimizer.load_state_dict(torch.load(file, weights_only=True))

    @rule(how=st.sampled_from([copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]))
    def copy_it(self, how):
        self.optimizer = how(self.optimizer)
        self.exchange([p for group in self.optimizer.param_groups for p in group["params"]])

    @rule(data=st.data())
    def replace_state(self, data):
        p, model = data.draw(st.sampled_from(self.pairs()), label="pair")
        state = self.optimizer.state[p]
        if not state:
            return
        how = data.draw(st.sampled_from(["clone", "zero", "dict", "in place"]))
        if how == "clone":
            state.update({name: value.clone() for name, value in state.items()})
        elif how == "dict":
            self.optimizer.state[p] = data.draw(st.sampled_from([dict, lambda s: defaultdict(dict, s)]))(state)
        else:
            zeros = torch.zeros(p.shape, dtype=torch.float64)
            state["moment.m"] = zeros if how == "zero" else state["moment.m"].zero_()
            # d is recalled as m/D: with m = 0 nothing but the decay is left of it
            model.m = np.zeros_like(model.m)
            if self.kind != "adamw" and model.t:
                gamma = float(state["decay.weight_decay"]) if self.kind == "apollow" else 0.0
                model.d = gamma * model.theta / (1 - gamma * float(state["lr"]))

    @rule(data=st.data())
    def forget_state(self, data):
        p, model = data.draw(st.sampled_from(self.pairs()), label="pair")
        how = data.draw(st.sampled_from(["del", "empty", "clear"]))
        if how == "del":
            self.optimizer.state.pop(p, None)
        elif how == "empty":
            self.optimizer.state[p] = {}
        else:
            self.optimizer.state[p].clear()
        model.restart()

    @rule(data=st.data())
    def move_and_cast(self, data):
        p, model = data.draw(st.sampled_from(self.pairs()), label="pair")
        if data.draw(st.booleans()):
            p.data = p.data.clone()
        else:  # d, with its decay, is recalled from θ as it stands
            if self.kind != "apollow":
                p.data = p.data.float().double()
                model.theta = model.theta.astype(np.float32).astype(np.float64)

    @rule(data=st.data())
    def change_threads(self, data):
        torch.set_num_threads(data.draw(st.sampled_from(self.threads)))

    def teardown(self):
        if not hasattr(self, "optimizer"):
            return
        try:
            for p, model in self.pairs():
                # float64, up to 30 steps; recalling d instead of storing it amplifies rounding to some 1e-12
                np.testing.assert_allclose(p.detach().numpy(), model.theta, rtol=1e-8, atol=1e-9)
                found = self.optimizer.state.get(p)
                assert (int(found["step"]) if found else 0) == model.t
        finally:
            torch.set_num_threads(self.before)


class Short(Lives):
    kinds, threads = ("apollo", "apollow"), (1,)


def run(machine, examples, steps):
    chosen = settings(max_examples=examples, stateful_step_count=steps, deadline=None, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(machine, settings=chosen)


def test_a_hundred_lives():
    run(Short, 100, 12)


@pytest.mark.slow
def test_two_thousand_lives():
    run(Lives, 2000, 20)
