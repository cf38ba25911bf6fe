"""Pictures that a GPU encodes together have the same bits whatever is beside them, and wherever they stand."""

from pathlib import Path

import numpy as np
import pytest
from tests.fixtures.train_rig import spec_for

from giornata.diffusion.base.models import load_base
from giornata.diffusion.draws.determinism import fix_determinism
from giornata.diffusion.encode.latent_batches import MOST_ROWS, LatentBatches, encode, rows_on
from giornata.diffusion.tiny.tiny_model import build_tiny_model
from giornata.protocol.specs import TrainSpec

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_the_rest_of_a_batch_has_the_bits_of_the_whole(tmp_path: Path) -> None:
    """Pictures of the tiny model are so small that the most rows fit on any device."""
    fix_determinism(1)
    spec = TrainSpec.model_validate(spec_for(build_tiny_model(tmp_path / "model")))
    vae = load_base(spec, device="cuda", dtype=torch.float32).vae
    rows_of = rows_on(vae, torch.device("cuda", 0))
    assert rows_of((64, 64)) == MOST_ROWS
    draw = np.random.default_rng(0)
    pictures = [draw.integers(0, 256, (64, 64, 3), dtype=np.uint8) for _ in range(MOST_ROWS)]
    batches = LatentBatches(vae, rows_of)
    whole, rest = batches.encode(pictures), batches.encode(pictures[5:])
    for one, other in zip(whole[5:], rest, strict=True):
        assert torch.equal(one.mean_CHW, other.mean_CHW)
        assert torch.equal(one.std_CHW, other.std_CHW)
    alone = encode(vae, pictures[0])
    torch.testing.assert_close(whole[0].mean_CHW, alone.mean_CHW, rtol=1e-3, atol=1e-4)
