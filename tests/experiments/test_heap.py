"""Freed memory stays for the next tensor inside, and goes back to the system outside; counted in pages, not in seconds."""

import resource
import sys

import pytest
import torch

from sandbox import ensemble
from sandbox.ensemble import heap

PAGES = 2**26 // resource.getpagesize()  # of a tensor of 64 MiB

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="glibc's")


def faults():
    """Pages that the system had to find for one tensor: at first all, later none if it found the freed ones again."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.empty(2**24).fill_(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def resident():
    with open("/proc/self/statm") as pages:
        return int(pages.read().split()[1])


def test_inside_and_after():
    with pytest.raises(KeyError), heap.kept():
        assert min(faults() for _ in range(6)) < PAGES / 10
        inside = resident()
        raise KeyError
    assert resident() < inside - PAGES / 2


@pytest.fixture
def said(monkeypatch):
    """What an older glibc is told; it refuses the higher threshold and would be left with the lowest."""
    said = []

    class Libc:
        @staticmethod
        def mallopt(name, value):
            said.append((name, value))
            return name != heap.MMAP_THRESHOLD or value <= heap.DEFAULT

        @staticmethod
        def malloc_trim(pad):
            said.append("trim")

    monkeypatch.setattr(heap.ctypes, "CDLL", lambda _: Libc)
    return said


def test_a_grid(said):
    """Every step of it is inside."""
    inside = [(heap.MMAP_THRESHOLD, heap.KEEP), (heap.MMAP_THRESHOLD, heap.DEFAULT), (heap.TRIM_THRESHOLD, heap.KEEP)]

    def loss(params, _):
        assert said == inside
        return params.square().sum()

    ensemble.run("sgd", loss, params=torch.ones(3), lr=[0.1, 0.2], steps=6)
    assert said == [*inside, (heap.MMAP_THRESHOLD, heap.DEFAULT), (heap.TRIM_THRESHOLD, 2 * heap.DEFAULT), "trim"]


def test_another_c_library(monkeypatch):
    """Nothing happens."""
    monkeypatch.setattr(heap.sys, "platform", "darwin")
    monkeypatch.setattr(heap.ctypes, "CDLL", None)
    with heap.kept():
        pass
