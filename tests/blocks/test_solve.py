"""The slot between rectifier and decay: what it computes, how it is shown and kept, and that recipes without it are as before."""

import copy

import pytest
import torch

import sandbox
import variants
from sandbox.blocks import AdamWDecay, ClipEach, Decoupled, Divide, ProximalDecay, Sign, Solve, block
from sandbox.forms import toml
from sandbox.forms.ablation import ablate
from tests.light import BACKENDS, each_backend
from tests.problem import Torchs

APOLLO = variants.get("apollo")
SOLVERS = {"sign": Sign(), "clip": ClipEach(limit=0.3)}


@block
class Forgetful(Solve):
    """p = min(max(m/D, -0.3), 0.3), by a solver that cannot say again what it gave."""

    recalls = False

    def step(self, x, **state):
        # p = min(max(m/D, -0.3), 0.3)
        return x.value.clamp(-0.3, 0.3), state


@block
class Half(Solve):
    """p = m/(2D), from u and D apart."""

    recalls = False

    def step(self, x, **state):
        # p = u / (2D)
        return x.u / (2 * x.D), state


def trained(recipe, backend="eager", steps=12):
    problem = Torchs(torch.float64)
    optimizer = sandbox.Optimizer(problem.params, recipe, lr=0.01, backend=backend)
    for step in range(steps):
        optimizer.zero_grad()
        problem.loss(step, problem.params).backward()
        optimizer.step()
    return [p.detach().clone() for p in problem.params], optimizer


@pytest.mark.parametrize("solver", SOLVERS)
def test_the_direction_is_what_the_equation_says(solver):
    """From what the step itself shows of u and D, with a decay on top."""
    recipe, seen = APOLLO.replace(solve=SOLVERS[solver], decay=Decoupled(weight_decay=0.1)), []
    params = [p.detach() for p in Torchs(torch.float64).params]
    state = recipe.init(params)
    for _ in range(3):
        recipe.update(state, params, params, observe=lambda i, x: seen.append((x.u / x.D, x.theta, x.d)))
        state, params = recipe.update(state, params, params)
    for quotient, theta, d in seen:
        p = quotient.sign() if solver == "sign" else quotient.clip(-0.3, 0.3)
        assert torch.equal(d, p + 0.1 * theta)


@pytest.mark.parametrize(("decay", "backend"), each_backend([AdamWDecay, Decoupled, ProximalDecay]))
def test_the_direction_is_recalled_through_the_solver(decay, backend):
    """A solver that is read from m and B gives the trajectory of one whose d has to be stored (1e-12: the decay is inverted).

    By a clip, not by a sign: the sign of m/D does not depend on B, so no θ would tell whether d was recalled right.
    """
    solvers = ClipEach(limit=0.3), Forgetful()
    recalling, storing = (APOLLO.replace(solve=s, decay=decay(weight_decay=0.1)) for s in solvers)
    assert recalling.analysis.recalls_direction
    assert storing.analysis.stores_direction
    assert (recalling.analysis.state_elements, storing.analysis.state_elements) == (2, 3)
    for p, q in zip(trained(recalling, backend)[0], trained(storing)[0], strict=True):
        torch.testing.assert_close(p, q, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_limit_changed_by_hand_is_recalled_as_it_was(backend):
    recipe = APOLLO.replace(solve=ClipEach(limit=0.3))
    assert "solve.limit" in recipe.analysis.recalled
    problem, ends = Torchs(torch.float64), []
    for kept in (recipe, recipe.replace(projection=sandbox.blocks.Box(low=-1e9, high=1e9), decay=Decoupled(weight_decay=0.0))):
        problem = Torchs(torch.float64)
        optimizer = sandbox.Optimizer(problem.params, kept, lr=0.02, backend=backend)
        for step in range(10):
            optimizer.param_groups[0]["solve.limit"] = 0.3 if step < 5 else 0.1
            optimizer.zero_grad()
            problem.loss(step, problem.params).backward()
            optimizer.step()
        ends.append([p.detach().clone() for p in problem.params])
    for p, q in zip(*ends, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("backend", sandbox.backends.NAMES)
def test_a_solver_from_outside_has_u_and_D_apart(backend):
    """Half the direction under Adam (which does not look at d) is Adam at half the rate."""
    half, whole = trained(variants.get("adam").replace(solve=Half()), backend)[0], Torchs(torch.float64).params
    optimizer = sandbox.Optimizer(whole, "adam", lr=0.005)
    problem = Torchs(torch.float64)
    for step in range(12):
        optimizer.zero_grad()
        problem.loss(step, whole).backward()
        optimizer.step()
    for p, q in zip(half, whole, strict=True):
        torch.testing.assert_close(p, q.detach(), rtol=1e-12, atol=1e-13)


def test_how_it_is_shown():
    """Division has no line and no table, so that texts and fingerprints are those of before; other solvers have both."""
    assert "solve" not in str(APOLLO)
    assert "d = m/D\n" in str(APOLLO)
    assert "solve" not in toml.dumps(APOLLO)
    assert toml.loads(toml.dumps(APOLLO)).solve == Divide()
    recipe = APOLLO.replace(solve=ClipEach(limit=0.3), decay=Decoupled(weight_decay=0.1))
    lines = str(recipe).splitlines()
    assert any(line.split() == ["solve", "p", "=", "min(max(m/D,", "-c),", "c)", "c", "=", "0.3"] for line in lines)
    assert any(line.split() == ["decay", "d", "=", "p", "+", "γ", "θ", "γ", "=", "0.1"] for line in lines)
    assert r"d_t = p_t + \gamma" in recipe._repr_markdown_()
    assert toml.loads(toml.dumps(recipe)) == recipe
    assert recipe.structure()["solve"] == "ClipEach()"
    assert toml.fingerprint(recipe) != toml.fingerprint(recipe.replace(solve=Divide()))
    assert [r.name for r in ablate("apollo", solve=[Divide(), Sign()])] == ["apollo", "apollo[solve=Sign()]"]
    with pytest.raises(TypeError, match=r"slot 'solve' does not take .*ClipEach, Divide, .*Sign"):
        APOLLO.replace(solve=AdamWDecay())


def test_checkpoints_from_before_the_slot():
    """One without the entry was made by division, and is taken for nothing else."""
    _, optimizer = trained(APOLLO, steps=2)
    saved = copy.deepcopy(optimizer.state_dict())
    del saved["param_groups"][0]["recipe"]["solve"]
    trained(APOLLO, steps=0)[1].load_state_dict(saved)
    with pytest.raises(ValueError, match=r"differs .* in solve: Divide\(\) there, Sign\(\) here"):
        trained(APOLLO.replace(solve=Sign()), steps=0)[1].load_state_dict(saved)
