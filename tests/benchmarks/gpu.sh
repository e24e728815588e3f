#!/bin/sh
# Everything that a GPU has to show, in at most ten minutes; results go to tests/benchmarks/results and results/gpu.
#   sh tests/benchmarks/gpu.sh [python [device]]
# Each part has a limit of its own, so that one that hangs does not cost the others.  device: cpu tries the script without a GPU.
python=${1:-python}
device=${2:-cuda}
results=tests/benchmarks/results
# every backend against the reference, parameters and state in bfloat16, fully_shard on one device, CUDA graphs, times of a step
timeout 300 "$python" -m tests.benchmarks.gpu --device "$device" --shapes resnet110 transformer 2000-of-100
echo "checks and steps: exit $?"
timeout 90 "$python" -m tests.benchmarks.iterations --device "$device" --out $results/gpu-iterations.json
echo "whole iterations: exit $?"
timeout 100 "$python" -m sandbox study run all --tier smoke --device "$device" --seeds 1 --out results/gpu
echo "studies, smoke: exit $?"
# one seed, as far as the time goes: rows are kept one by one, and the same command without a limit goes on from them
timeout 110 "$python" -m sandbox study run F6 --tier gpu --device "$device" --seeds 1 --out results/gpu
echo "a study of the tier gpu: exit $? (124: not finished)"
