"""`eval()` and `train()` of sharded tensors are those of one process: float64, 1e-12 as in test_equality."""


def test_weights_to_evaluate_of_shards(two_ranks):
    for found in two_ranks:
        assert isinstance(found["evaluated"], dict), found["evaluated"]
        for errors in found["evaluated"].values():
            assert errors["evaluated"] <= 1e-12
            assert errors["trained"] <= 1e-12
            assert errors["moved"] > 1e-6
