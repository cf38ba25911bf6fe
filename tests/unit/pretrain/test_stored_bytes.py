"""What a stored row of Stable Diffusion 2 costs, against the figures that plans are made with.

The seed's 165.9 kB at 256 pixels and 190.5 kB at 512 are 77 x 1024 embeddings with one sample of the latents in two
bytes each. Here mean and logvar are stored, which is one such sample more; without text they are 16 KiB at 256.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.fixtures.pretrain_shards import write_shards

from giornata.diffusion.encode.captions import Embedding
from giornata.pretrain.encoding.encode_shards import EncodingTask, ShardEncoder
from giornata.pretrain.encoding.transforms import Posterior
from giornata.pretrain.recipes import sd2_base

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

    def encode_text(self, captions: Sequence[str]) -> Embedding:
        return Embedding(prompt_BLD=torch.zeros(len(captions), 77, 1024, dtype=torch.float16), pooled_BP=None)


@pytest.mark.parametrize("buckets", [False, True])
def test_a_row_takes_what_the_plan_says(tmp_path: Path, buckets: bool) -> None:
    source = write_shards(tmp_path / "shards", shards=1, rows=20)
    config = sd2_base(str(tmp_path))
    config = replace(config, encode=replace(config.encode, encode_batch_size=5))
    config = replace(config, data=replace(config.data, enable_bucket=buckets))
    work = EncodingTask(number=0, parts=("256", "512", "text"))
    done = ShardEncoder(config, source, OfSd2Size(), threads=1).encode(work)
    expected = {"256": 2 * SAMPLE_BYTES[256], "512": 2 * SAMPLE_BYTES[512], "text": TEXT_BYTES}
    for part, size in expected.items():
        assert size <= done[part].shard.bytes / 20 < size * 1.01 + 1000  # names, sizes and captions beside
    assert {side: TEXT_BYTES + size for side, size in SAMPLE_BYTES.items()} == SEED_BYTES


def test_text_once_makes_144_tb_of_238() -> None:
    rows, latents = 600_000_000, 2 * sum(SAMPLE_BYTES.values())
    assert round(rows * (latents + 2 * TEXT_BYTES) / 1e12) == 238
    assert round(rows * (latents + TEXT_BYTES) / 1e12) == 144


def test_hybrid_stores_a_tenth_at_256() -> None:
    assert 2 * SAMPLE_BYTES[256] == 16_384
    assert 0.09 < 2 * SAMPLE_BYTES[256] / (2 * SAMPLE_BYTES[256] + TEXT_BYTES) < 0.1
