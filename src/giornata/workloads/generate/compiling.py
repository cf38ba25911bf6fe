"""Decides if the passes of pictures run as compiled kernels: `compile` of the node, and what the node has.

auto compiles on GPUs that are known, a kind of pass after it was needed often, and checks the first answer against
the plain one. Under auto a picture alone is drawn plainly: equal nodes give it equal bytes, whatever they drew
before.
auto is off on CPUs, and on any other GPU. on compiles at once, unchecked, as in training.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from giornata.diffusion.base.regional import INDUCTOR, Backend, compiler_of
from giornata.diffusion.sampling.compiled_passes import MOST_KINDS, CompiledPasses, KernelRules
from giornata.domain.errors import Fault, WorkloadFailed
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.training.optimization import Compile

KNOWN_GPUS = frozenset({(8, 0), (8, 6), (8, 9), (9, 0)})
"""Compute capabilities that auto compiles for: those of A100, RTX 3090, RTX 4090 and H100, of which others have
published that torch's kernels are faster. This code has been measured on none of them."""
PASSES_BEFORE_AUTO = 300
"""Plain passes of a kind before auto compiles it. A guess: a minute of the compiler, and a fifth of a second less for
each pass."""

Capability = Callable[[torch.device], tuple[int, int]]
"""Tells the compute capability of a CUDA device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawingCompiler:
    """The choice of the node, and how it learns what it has. `version_of` is as in training."""

    choice: Compile = Compile.AUTO
    version_of: Callable[[torch.device], str | None] = compiler_of
    capability_of: Capability = torch.cuda.get_device_capability
    backend: Backend = INDUCTOR
    most_kinds: int = MOST_KINDS

    def passes_of(self, unet: Any, device: torch.device) -> CompiledPasses | None:
        """Return the compiled passes of a UNet; None where all are plain.

        Raises WorkloadFailed(CRASHED), which sends the lease to another node, when the choice is on and there is no
        compiler.
        """
        if self.choice is Compile.OFF or (self.choice is Compile.AUTO and not self._is_known(device)):
            return None
        version = self.version_of(device)
        if version is None and self.choice is Compile.ON:
            message = f"this node has nothing that compiles kernels for {device.type}"
            hint = "install g++ on the node (for CUDA also triton), or leave its setting compile at auto"
            fault = Fault(where="compile", message=message, hint=hint)
            raise WorkloadFailed(Reason.CRASHED, str(fault), (fault,))
        return None if version is None else CompiledPasses(unet, self._rules(version))

    def _is_known(self, device: torch.device) -> bool:
        return device.type == "cuda" and self.capability_of(device) in KNOWN_GPUS

    def _rules(self, version: str) -> KernelRules:
        is_auto = self.choice is Compile.AUTO
        return KernelRules(
            compiler=version,
            passes_before=PASSES_BEFORE_AUTO if is_auto else 0,
            checked=is_auto,
            of_one=not is_auto,
            backend=self.backend,
            most_kinds=self.most_kinds,
        )
