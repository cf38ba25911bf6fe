"""The pictures at a job's end: drawn by the warm base, with nothing loaded, and never a reason to fail.

The files that users load are written before. What goes wrong here, memory above all, is an event of the job, and it
ends without pictures.
"""

import gc
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from giornata.diffusion.lora import Adapters
from giornata.diffusion.models import BaseModel
from giornata.diffusion.samples import draw_samples, sheet
from giornata.domain.reasons import Reason
from giornata.engine.workload import Reporter, Stopped
from giornata.protocol.specs import TrainSpec
from giornata.workloads.train.faults import reason_of

SAMPLES = "samples.png"
NOT_DRAWN = "samples-not-drawn"


def sample(
    base: BaseModel,
    spec: TrainSpec,
    adapters: Adapters,
    result: Mapping[str, torch.Tensor],
    *,
    directory: Path,
    reporter: Reporter,
    attend: Callable[[], None],
    too_large: str | None = None,
) -> str | None:
    """Draw what `spec.sample_prompts` ask for and hand it over; returns the file's name, or None without pictures.

    `attend` is called between denoising steps and raises Stopped when the attempt is to end. A driver's error is
    raised too: after it nothing that the device says can be trusted. With `too_large`, see
    `fit.why_not_drawn`, nothing is tried: some drivers spill rather than say so.
    """
    if not spec.sample_prompts:
        return None
    if too_large is not None:
        reporter.notice(NOT_DRAWN, {"message": too_large})
        return None

    def tick(done: int, total: int) -> None:
        reporter.phase("sampling", done, total)  # at each step: on a slow device a picture takes long, and is watched
        attend()

    try:
        samples = draw_samples(base, spec, adapters, result, tick=tick)
        path = directory / SAMPLES
        sheet(samples, base, spec).save(path, format="PNG", optimize=True)
    except Stopped:
        raise
    except Exception as error:
        if reason_of(error) is Reason.NODE_DRIVER:
            raise
        reporter.notice(NOT_DRAWN, {"message": f"{type(error).__name__}: {error}"[:500]})
    else:
        total = 2 * len(spec.sample_prompts)
        reporter.phase("sampling", total, total)
        reporter.artifact(SAMPLES, path, "image/png")
        return SAMPLES
    # After the except clause, for its exception held what was in memory.
    gc.collect()
    if base.device.type == "cuda":
        torch.cuda.empty_cache()
    return None
