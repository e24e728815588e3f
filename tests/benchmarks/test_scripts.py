"""The scripts of benchmarks, run on the CPU as far as that goes: they refuse politely, and can tell a wrong trajectory."""

import weakref

import pytest
import torch

from tests.benchmarks import gpu


def test_it_refuses_where_there_is_no_gpu(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main([]) == 2
    assert "No GPU that torch can use" in capsys.readouterr().out


@pytest.mark.slow
def test_it_compares_trajectories(monkeypatch, tmp_path):
    monkeypatch.setattr(gpu, "copy_bandwidth", lambda device: 1e9)
    assert gpu.check_backends(["sgd"], "cpu")["sgd"]["scripted"] <= 1e-6
    arguments = ["--device", "cpu", "--variants", "sgd", "--shapes", "--out", str(tmp_path)]
    assert gpu.main(arguments) == 0
    assert (tmp_path / "gpu-cpu.json").exists()
    honest = gpu.trajectory

    def late(name, backend, *args, **options):
        return honest(name, backend, *args, **options, steps=19 if backend == "compiled" else 20)

    monkeypatch.setattr(gpu, "trajectory", late)
    assert gpu.main(arguments) == 1


def test_the_table_of_make_bench(monkeypatch):
    """On three small tensors: every column of every row, with the state that recipes and torch keep (bytes a parameter)."""
    from tests.benchmarks import contenders, measure

    monkeypatch.setitem(contenders.SHAPES, "three", [(50, 40), (7,), (300,)])
    monkeypatch.setattr(measure.Interleaved, "bandwidth", lambda self: 1e9)
    run = measure.Interleaved("three", lambda name: name in ("apollo compiled", "apollo eager", "plain Apollo (a loop)"))
    run.source, run.target = torch.zeros(2), torch.zeros(2)
    for _ in range(2):
        run.round()
    rows = {row["name"]: row for row in run.rows()}
    assert rows["torch AdamW fused"]["ratio"] == 1
    assert rows["apollo compiled"]["state_bytes_a_parameter"] == rows["apollo eager"]["state_bytes_a_parameter"]
    assert 8 <= rows["apollo eager"]["state_bytes_a_parameter"] < 8.1
    assert 12 <= rows["plain Apollo (a loop)"]["state_bytes_a_parameter"] < 12.1
    assert rows["apollo compiled"]["buffer_bytes_a_parameter"] > 8
    assert all(row["ms"] > 0 and row["first_step_s"] > 0 for row in rows.values())
    assert "apollo compiled" in measure.table(list(rows.values()))
    kept = [weakref.ref(g) for pairs in run.gradients.values() for _, g in pairs]
    run.close()
    assert not any(each() is not None for each in kept)
