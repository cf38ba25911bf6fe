"""MFU, data wait and memory peak."""

import pytest
import torch

from giornata.workloads.train.results.step_metrics import StepGauges, peak_of


def test_gauges_read_what_there_is() -> None:
    waited_s = iter((0.5, 0.7))
    gauges = StepGauges(
        waited_s=lambda: next(waited_s),
        flops_per_image=14_000_000_000_000,
        peak_flops_per_s=700e12,
        vram_peak_bytes=lambda: 12_345,
    )
    first = gauges.read(steps=4, images_per_s=25.0)
    assert first == pytest.approx({"data_wait_ms": 125.0, "mfu": 0.5, "vram_peak_bytes": 12_345.0})
    assert gauges.read(steps=2, images_per_s=25.0)["data_wait_ms"] == pytest.approx(100.0)  # since the last time
    assert StepGauges(waited_s=lambda: 0.0).read(steps=1, images_per_s=1.0) == {"data_wait_ms": 0.0}


def test_a_cpu_has_no_peak_to_be_held_to() -> None:
    assert peak_of(torch.device("cpu"), torch.float32) is None
