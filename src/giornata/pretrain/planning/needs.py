"""What a run needs on whatever machines: FLOPs and storage, phase by phase."""

from dataclasses import dataclass

from giornata.pretrain.planning.facts import Facts
from giornata.pretrain.planning.request import PlanRequest

GIGA = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseNeeds:
    """`train_flop`: forward and backward, of all samples. `encode_flop`: both towers, of all rows once; with encoders
    beside the run it is paid in every pass. Stored bytes are those of the two modes that store."""

    resolution: int
    samples: int
    steps: int
    rows: int
    train_flop: float
    encode_flop: float
    offline_bytes: float
    hybrid_bytes: float


def needs_of(request: PlanRequest, facts: Facts) -> tuple[PhaseNeeds, ...]:
    """Of a checked request; `facts` hold what it brings (`with_given`)."""
    return tuple(
        PhaseNeeds(
            resolution=phase.resolution,
            samples=phase.samples,
            steps=-(-phase.samples // phase.global_batch_size),
            rows=request.rows(phase),
            train_flop=phase.samples * flops.train_gflop * GIGA,
            encode_flop=request.rows(phase) * flops.encode_gflop * GIGA,
            offline_bytes=request.rows(phase) * (sizes.moments_bytes + sizes.text_bytes),
            hybrid_bytes=request.rows(phase) * sizes.moments_bytes,
        )
        for phase in request.phases
        for flops in [facts.flops_of(request.model, phase.resolution)]
        for sizes in [facts.row_bytes_of(request.model, phase.resolution)]
    )
