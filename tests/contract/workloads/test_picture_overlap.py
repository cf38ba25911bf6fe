"""Finished pictures are decoded and written while the next rows are denoised."""

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fixtures.picture_leases import ORDER, CountedWorkload, lease, params

from giornata.diffusion.base.models import BaseModel

PATIENCE_S = 60.0
PASSES = 2


@dataclass
class HeldDecoder(CountedWorkload):
    """A workload in which the first decoding and the first pass of the next row wait for each other. `came` says for
    each decoding whether the pass came."""

    came: list[bool] = field(default_factory=list)
    decoding: threading.Event = field(default_factory=threading.Event)
    passed: threading.Event = field(default_factory=threading.Event)

    def _load(self, *given: Any, **options: Any) -> BaseModel:
        base = super()._load(*given, **options)
        base.vae.decoder.register_forward_pre_hook(self._decode)
        return base

    def _decode(self, *_: object) -> None:
        self.decoding.set()
        self.came.append(self.passed.wait(PATIENCE_S))

    def _pass(self, unet: Any, given: Any) -> None:
        if len(self.passes) >= PASSES:  # the first picture has all its passes: this one is of the next row
            assert self.decoding.wait(PATIENCE_S)
            self.passed.set()
        super()._pass(unet, given)


def test_the_next_row_is_denoised_while_the_finished_picture_is_decoded(tiny_folder: Path, tmp_path: Path) -> None:
    each = [params(tiny_folder, seed=seed, num_inference_steps=PASSES) for seed in range(2)]
    held = HeldDecoder(rows=1)

    drawn = held.draw(lease(tmp_path, each))

    assert held.came == [True, True]
    assert held.passes == [2] * 2 * PASSES
    assert all(drawn.pictures[ORDER, number][0] is not None for number in range(2))
