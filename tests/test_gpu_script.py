"""The GPU script, run on the CPU as far as that goes: it refuses politely, and it can tell a wrong trajectory."""

import torch

from tests.benchmarks import gpu


def test_it_refuses_where_there_is_no_gpu(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main([]) == 2
    assert "No GPU that torch can use" in capsys.readouterr().out


def test_it_compares_trajectories(monkeypatch, tmp_path):
    monkeypatch.setattr(gpu, "copy_bandwidth", lambda device: 1e9)
    assert gpu.check_backends(["sgd"], "cpu")["sgd"]["scripted"] <= 1e-6
    arguments = ["--device", "cpu", "--variants", "sgd", "--shapes", "--out", str(tmp_path)]
    assert gpu.main(arguments) == 0
    assert (tmp_path / "gpu-cpu.json").exists()
    honest = gpu.trajectory
    monkeypatch.setattr(
        gpu, "trajectory", lambda name, backend, *a: honest(name, backend, *a, steps=19 if backend == "compiled" else 20)
    )
    assert gpu.main(arguments) == 1
