"""A snapshot holds what was there when it was taken."""

import torch

from giornata.diffusion.files.checkpoint import TensorSnapshot


def test_snapshot_keeps_values_shapes_and_dtypes_when_tensors_change_later() -> None:
    tensors = {
        "matrix": torch.arange(6, dtype=torch.float32).view(2, 3),
        "bytes": torch.tensor([1, 255], dtype=torch.uint8),
        "scalar": torch.tensor(0.1, dtype=torch.float64),
        "transposed": torch.arange(6, dtype=torch.float32).view(2, 3).T,
        "empty": torch.empty(0, 4),
    }
    wanted = {name: tensor.clone() for name, tensor in tensors.items()}
    snapshot = TensorSnapshot(tensors)
    for tensor in tensors.values():
        tensor.zero_()
    found = snapshot.tensors()
    assert list(found) != []
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert found[name].dtype is tensor.dtype
        assert torch.equal(found[name], tensor)


def test_a_parameter_that_learns_goes_in_without_its_history() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    assert not TensorSnapshot({"a": parameter}).tensors()["a"].requires_grad


def test_snapshot_of_no_tensors_is_empty() -> None:
    assert TensorSnapshot({}).tensors() == {}
