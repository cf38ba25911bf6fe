"""What a stored row of Stable Diffusion 2 costs, against the figures that plans are made with.

The seed's 165.9 kB at 256 pixels and 190.5 kB at 512 are 77 x 1024 embeddings with one sample of the latents in two
bytes each. Here mean and logvar are stored, which is one such sample more; without text they are 16 KiB at 256.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.fixtures.pretrain_shards import write_shards

from giornata.pretrain.encoding.encode_shards import ShardEncoder, Work
from giornata.pretrain.encoding.encoder import Posterior, Text
from giornata.pretrain.recipes import sd2_base
from giornata.protocol.pretraining import Mode

TEXT_BYTES = 77 * 1024 * 2
SAMPLE_BYTES = {256: 4 * 32 * 32 * 2, 512: 4 * 64 * 64 * 2}
SEED_BYTES = {256: 165_888, 512: 190_464}


class OfSd2Size:
    """An encoder whose answers have the sizes of Stable Diffusion 2's, and nothing in them."""

    digest, scaling = "none", (0.0, 0.18215)

    def encode_images(self, pixels_BHWC: np.ndarray) -> Posterior:
        count, height, width, _ = pixels_BHWC.shape
        zeros_BChw = np.zeros((count, 4, height // 8, width // 8), np.float16)
        return Posterior(mean_BChw=zeros_BChw, logvar_BChw=zeros_BChw)

    def encode_text(self, captions: Sequence[str]) -> Text:
        return Text(prompt_NLD=np.zeros((len(captions), 77, 1024), np.float16), pooled_NP=None)


@pytest.mark.parametrize("resolution", [256, 512])
@pytest.mark.parametrize("mode", [Mode.OFFLINE, Mode.HYBRID])
def test_a_row_takes_what_the_plan_says(tmp_path: Path, resolution: int, mode: Mode) -> None:
    source = write_shards(tmp_path / "shards", shards=1, rows=20)
    config = sd2_base(str(tmp_path))
    config = replace(config, encode=replace(config.encode, mode=mode, encode_batch_size=5))
    done = ShardEncoder(config, source, OfSd2Size(), threads=1).encode(Work(resolution=resolution, number=0))
    latents = 2 * SAMPLE_BYTES[resolution]
    expected = latents + (TEXT_BYTES if mode is Mode.OFFLINE else 0)
    assert expected <= done.shard.bytes / 20 < expected * 1.01 + 1000  # names, sizes and captions beside
    assert SEED_BYTES[resolution] == TEXT_BYTES + SAMPLE_BYTES[resolution]


def test_hybrid_stores_a_tenth_at_256() -> None:
    assert 2 * SAMPLE_BYTES[256] == 16_384
    assert 0.09 < 2 * SAMPLE_BYTES[256] / (2 * SAMPLE_BYTES[256] + TEXT_BYTES) < 0.1
