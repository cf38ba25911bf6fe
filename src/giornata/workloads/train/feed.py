"""The batches of the coming passes, made ready by a thread while the device is busy with the present one."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import torch

from giornata.diffusion.objective import NoisyBatch
from giornata.diffusion.order import Role
from giornata.workloads.train.caching import Supplies
from giornata.workloads.train.draws import assemble
from giornata.workloads.train.pace import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """One forward and backward pass: its batch, on the CPU, and what is said of each picture.

    `share` is its part of the step's pictures; the shares of a step add up to 1. For `role` see `Draws.role_of`.
    """

    step: int
    batch: NoisyBatch
    captions: tuple[str, ...]
    share: float
    role: Role | None = None


class Feed:
    """The passes from `first_step` to before `end_step`, in order; each is begun when the one before is taken.

    `rows` pictures of each material make a pass (None: all of a step). `waited_s` is how long `take` has waited in
    all. As a context manager it ends its thread.
    """

    def __init__(
        self,
        supplies: Supplies,
        vae_config: Any,
        *,
        first_step: int,
        end_step: int,
        rows: int | None,
        pinned: bool,
        clock: Clock,
    ) -> None:
        self._supplies, self._vae_config, self._pinned, self._clock = supplies, vae_config, pinned, clock
        self._rows, self._steps = rows, range(first_step, end_step)
        self.waited_s = 0.0
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="feed")
        self._passes = self._make()
        self._next = self._begin()

    def take(self) -> Ready:
        """The next pass. Raises what its making raised, and IndexError when there is none left."""
        began_s = self._clock()
        ready = self._next.result()
        self.waited_s += self._clock() - began_s
        if ready is None:
            raise IndexError("all passes were taken")
        self._next = self._begin()
        return ready

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown(cancel_futures=True)

    def _begin(self) -> Future[Ready | None]:
        return self._thread.submit(next, self._passes, None)

    @torch.no_grad()
    def _make(self) -> Iterator[Ready]:
        draws = self._supplies.draws
        for step in self._steps:
            passes = draws.passes(step, self._rows)
            pictures = sum(map(len, passes))
            for drawn in passes:
                batch = assemble(draws, drawn, self._supplies.latents, self._vae_config)
                yield Ready(
                    step=step,
                    batch=batch.pinned() if self._pinned else batch,
                    captions=tuple(draws.caption(draw) for draw in drawn),
                    share=len(drawn) / pictures,
                    role=draws.role_of(drawn),
                )
