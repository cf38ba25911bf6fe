"""Sizes as people write them."""

import pytest

from giornata.cli.ui.text import parse_size
from giornata.domain.errors import InvalidInput


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("20GB", 20 * 10**9),
        ("20 gb", 20 * 10**9),
        ("20GiB", 20 * 2**30),
        ("1.5GB", 1_500_000_000),
        ("512MiB", 512 * 2**20),
        ("500B", 500),
        ("2kB", 2000),
        ("1TB", 10**12),
        ("0", 0),
    ],
)
def test_a_size_is_read(text: str, size: int) -> None:
    assert parse_size(text, option="--min-vram") == size


@pytest.mark.parametrize(
    "text", ["", "GB", "20G", "20 XB", "-1GB", "1,5GB", "20GBs", "1iB", "٢GB", "1e9", "500", "20 "]
)
def test_invalid_size_is_refused_with_example(text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_size(text, option="--min-vram")
    (fault,) = refused.value.faults
    assert (fault.where, fault.hint) == ("--min-vram", "--min-vram 20GB, or 20GiB")
