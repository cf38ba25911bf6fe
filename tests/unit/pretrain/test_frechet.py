"""FID by a TorchScript file, with a network of no size in the place of Inception; the distance is held against sets
of which it is known."""

import math
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn

from giornata.domain.errors import InvalidInput
from giornata.pretrain.evaluation.scores import Inception, fid


class FirstPixels(nn.Module):
    """Features are the red of the upper left corner's pixel and of its right neighbor's."""

    def forward(self, img: torch.Tensor, return_features: bool = False) -> torch.Tensor:
        red_N2 = img[:, 0, 0, 0:2].to(torch.float32)
        return red_N2 if return_features else torch.softmax(red_N2, dim=1)


class OneNumber(nn.Module):
    def forward(self, img: torch.Tensor, return_features: bool = False) -> torch.Tensor:
        return img.to(torch.float32).mean()


class NotCalledLikeIt(nn.Module):
    def forward(self, img: torch.Tensor) -> torch.Tensor:
        return img[:, 0, 0, 0:2].to(torch.float32)


def file_of(network: nn.Module, folder: Path) -> str:
    path = folder / "inception.pt"
    torch.jit.script(network).save(str(path))
    return str(path)


@pytest.fixture
def inception(tmp_path: Path) -> Inception:
    return Inception(file_of(FirstPixels(), tmp_path))


def pictures(*points: tuple[int, int]) -> list[Image.Image]:
    """Of different sizes, with these two reds."""
    found = []
    for place, (left, right) in enumerate(points):
        picture = Image.new("RGB", (4 + place, 3), (9, 200, 200))
        picture.putpixel((0, 0), (left, 1, 2))
        picture.putpixel((1, 0), (right, 3, 4))
        found.append(picture)
    return found


def cross(x: int, y: int, a: int, b: int) -> list[Image.Image]:
    """Mean (x, y), variances 2a²/3 and 2b²/3, no covariance."""
    return pictures((x - a, y), (x + a, y), (x, y - b), (x, y + b))


def leaning(x: int, y: int, a: int, b: int) -> list[Image.Image]:
    """Mean (x, y); along the two diagonals variances 4a²/3 and 4b²/3."""
    return pictures((x - a, y - a), (x + a, y + a), (x - b, y + b), (x + b, y - b))


def test_fid_of_equal_sets_is_zero(inception: Inception) -> None:
    assert fid(inception, cross(100, 90, 7, 20), cross(100, 90, 7, 20)) == pytest.approx(0.0, abs=1e-2)


def test_fid_of_shifted_sets_is_squared_distance(inception: Inception) -> None:
    assert fid(inception, cross(100, 90, 7, 20), cross(103, 94, 7, 20)) == pytest.approx(25.0, rel=1e-4)


def test_fid_of_gaussians_matches_frechet_formula(inception: Inception) -> None:
    expected = (math.sqrt(2 / 3) * (30 - 10)) ** 2 + (math.sqrt(2 / 3) * (5 - 20)) ** 2 + 3**2
    assert fid(inception, cross(100, 90, 30, 5), cross(103, 90, 10, 20)) == pytest.approx(expected, rel=1e-4)
    expected = (math.sqrt(4 / 3) * (30 - 10)) ** 2 + (math.sqrt(4 / 3) * (5 - 20)) ** 2
    assert fid(inception, leaning(100, 90, 30, 5), leaning(100, 90, 10, 20)) == pytest.approx(expected, rel=1e-4)


def test_fewer_pictures_than_features_are_refused(inception: Inception) -> None:
    many, two = cross(100, 90, 7, 20), cross(100, 90, 7, 20)[:2]
    for drawn, real in ((two, many), (many, two)):
        with pytest.raises(InvalidInput, match="2 pictures are too few for FID with 2 features"):
            fid(inception, drawn, real)
    assert fid(inception, many[:3], many[:3]) == pytest.approx(0.0, abs=1e-2)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"--inception.*nowhere\.pt is not a file"):
        Inception(str(tmp_path / "nowhere.pt"))


def test_a_file_that_is_no_network_is_named(tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    path.write_bytes(b"not TorchScript")
    with pytest.raises(InvalidInput, match=r"weights\.pt"):
        Inception(str(path))


@pytest.mark.parametrize("network", [OneNumber, NotCalledLikeIt])
def test_a_network_of_another_kind_is_refused(network: type[nn.Module], tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"inception\.pt.*inception-2015-12-05\.pt"):
        Inception(file_of(network(), tmp_path))
