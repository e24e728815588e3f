#!/bin/sh
# Everything that a GPU has to show, in at most ten minutes; results go to tests/benchmarks/results and results/gpu.
#   sh tests/benchmarks/gpu.sh [python]
# Each part has a limit of its own, so that one that hangs does not cost the others.
python=${1:-python}
results=tests/benchmarks/results
# checks of every backend against the reference, bfloat16, CUDA graphs, times of a step
timeout 330 "$python" -m tests.benchmarks.gpu --shapes resnet110 transformer 2000-of-100
echo "checks and steps: exit $?"
timeout 120 "$python" -m tests.benchmarks.iterations --device cuda --out $results/gpu-iterations.json
echo "whole iterations: exit $?"
timeout 120 "$python" -m sandbox study run all --tier smoke --device cuda --seeds 1 --out results/gpu
echo "studies, smoke: exit $?"
