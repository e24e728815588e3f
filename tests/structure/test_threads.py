"""Threads that use the package first at the same time, in a process of their own."""

from __future__ import annotations

import subprocess
import sys

# Each thread is one user of the package; what it returns is only there in modules that have been imported to their end.
PROGRAM = """
import sys, threading
sys.setswitchinterval(1e-6)
import sandbox, torch

def a(): return type(sandbox.Optimizer([torch.nn.Parameter(torch.ones(2))], "apollo")).__name__
def b(): from sandbox.forms import lookup; return lookup.recipe("shampoo").name
def c(): import variants; return variants.get("adamw").name

users, errors, values = [a, b, c] * 4, [], set()
barrier = threading.Barrier(len(users))

def work(user):
    barrier.wait()
    try:
        values.add(user())
    except BaseException as error:
        errors.append(repr(error))

threads = [threading.Thread(target=work, args=(user,)) for user in users]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(errors or sorted(values))
"""


def test_first_use_by_many_threads():
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=120)
    assert run.stdout.strip() == str(["Optimizer", "adamw", "shampoo"])


# Old import paths: each thread gets the module itself, with all that is in it, and the module keeps its own name.
OLD_PATHS = """
import importlib, sys, threading
import sandbox, torch
from sandbox.utils.lazy import MOVED

sys.setswitchinterval(1e-6)
failures = []
for old, new in MOVED.items():
    if not old.startswith("sandbox.") or "experiments" in old: continue  # the others import much more, by the same finder
    modules, barrier = [], threading.Barrier(8)

    def work():
        barrier.wait()
        module = __import__(old, fromlist=["x"])
        modules.append((module, len(vars(module))))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    module = sys.modules[new]
    failures += [old for each, size in modules if each is not module or size != len(vars(module))]
    failures += [old] * (len(modules) != 8 or module.__spec__.name != new or importlib.import_module(old) is not module)
print(failures)
"""


def test_old_import_paths_by_many_threads():
    run = subprocess.run([sys.executable, "-c", OLD_PATHS], capture_output=True, text=True, check=True, timeout=120)
    assert run.stdout.strip() == "[]"
