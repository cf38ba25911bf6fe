"""Other programs read encoded shards: the functions of the guide, as they stand there."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset
from tests.fixtures.pretrain_shards import write_shards

from giornata.pretrain.encode import encode
from giornata.pretrain.encoding.encoder import open_encoder
from giornata.pretrain.recipes import sdxl_tiny

GUIDE = Path(__file__).parents[3] / "docs/how-to/pretraining-modes.md"
ROWS, BROKEN = 5, 3


@pytest.fixture(scope="module")
def latents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of 32 pixels, with a picture that cannot be read."""
    folder = tmp_path_factory.mktemp("elsewhere")
    write_shards(folder / "shards", shards=1, rows=ROWS, sizes=((64, 64), (96, 64)), broken=(BROKEN,))
    config = sdxl_tiny(str(folder))
    config = replace(config, phases=config.phases[:1], data=replace(config.data, max_quarantined_share=0.5))
    encode(config, open_encoder(config.model, seed=0, device="cpu"))
    return folder / "latents"


def of_the_guide() -> dict[str, Callable[..., Any]]:
    found: dict[str, Any] = {}
    section = GUIDE.read_text(encoding="utf-8").split("### Reading encoded shards elsewhere")[1].split("\n## ")[0]
    for block in re.findall(r"```python\n(.*?)```", section, re.DOTALL):
        exec(block, found)  # noqa: S102 - these are our own lines
    return found


def test_pyarrow_reads_arrays_by_what_the_shards_say(latents: Path) -> None:
    rows = list(of_the_guide()["rows"](latents, 32, 0))
    assert len(rows) == ROWS - 1
    assert {row["prompt"].shape for row in rows} == {(77, 64)}
    assert all(row["mean"].shape[0] == 4 and row["mean"].shape == row["logvar"].shape for row in rows)
    assert all(row[name].dtype == np.float16 for row in rows for name in ("mean", "logvar", "prompt"))


def test_webdataset_reads_what_the_guide_converts(latents: Path, tmp_path: Path) -> None:
    guide = of_the_guide()
    guide["to_webdataset"](latents, 32, 0, str(tmp_path / "0.tar"))
    read = list(webdataset.WebDataset(str(tmp_path / "0.tar"), shardshuffle=False).decode())
    expected = list(guide["rows"](latents, 32, 0))
    assert [sample["caption.txt"] for sample in read] == [row["caption"] for row in expected]
    for sample, row in zip(read, expected, strict=True):
        assert all(np.array_equal(sample[f"{name}.npy"], row[name]) for name in ("mean", "logvar", "prompt"))
