"""`eval()` and `train()` of sharded tensors are those of one process: float64, 1e-12 as in test_equality."""

from tests.distributed.ranks import run


def test_weights_to_evaluate_of_shards():
    for found in run(2, "readouts:look"):
        assert isinstance(found, dict), found
        for errors in found.values():
            assert errors["evaluated"] <= 1e-12
            assert errors["trained"] <= 1e-12
            assert errors["moved"] > 1e-6
