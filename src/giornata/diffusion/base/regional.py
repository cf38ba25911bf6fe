"""The UNet's repeated parts as compiled kernels.

What is compiled are regions, the transformer blocks and, where that pays, the resnets, and not the whole model: the
compiler sees each kind of region once, however often it occurs, which takes a fraction of the time and gives most of
the speed
(https://docs.pytorch.org/tutorials/recipes/regional_compilation.html).

Bits must not depend on what the process, or an earlier attempt, happened to compile before:

- every shape gets kernels of its own (`dynamic=False`). Left to itself torch makes the first shape's kernels for that
  shape and the second's for all shapes, so that the order of shapes would decide;
- there is no bound on the number of shapes. Beyond its bound torch goes on without kernels and says nothing;
- nothing is chosen by the stopwatch (`deterministic`), unless the caller promises no bits;
- afterwards torch forgets it all. Kernels on disk are looked up by a hash of what they compute.
"""

import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType

import torch
from diffusers import UNet2DConditionModel
from diffusers.models.attention import BasicTransformerBlock
from torch import nn

from giornata.diffusion.base.unet_layers import UNITS

Kinds = tuple[type[nn.Module], ...]

EVERYWHERE: Kinds = UNITS
REGIONS: Mapping[str, Kinds] = MappingProxyType({"cpu": (BasicTransformerBlock,)})
"""The regions compiled on devices that do not compile EVERYWHERE: on a CPU compiled resnets take as long as plain
ones, and twice the compiler's time (docs/benchmark-log.md)."""
NO_BOUND = 2**30
Backend = str | Callable[..., Callable[..., object]]
"""A maker of kernels from a graph: one of torch's by its name, or a function."""
INDUCTOR = "inductor"
"""The maker of torch that generates code. Others only look at what can be compiled."""

Which = Callable[[str], str | None]
"""Finds a program, as shutil.which does."""


def regions(unet: UNet2DConditionModel, kinds: Kinds | None = None) -> tuple[nn.Module, ...]:
    """Return the modules to compile, in the order of the model's modules; by default those that pay on the UNet's
    device."""
    wanted = kinds or REGIONS.get(unet.device.type, EVERYWHERE)
    return tuple(module for module in unet.modules() if isinstance(module, wanted))


def kinds_of_region(unet: UNet2DConditionModel, kinds: Kinds | None = None) -> int:
    """Count the regions that differ in type or in sizes: the compiler has to work once for each."""
    found = regions(unet, kinds)
    return len({(type(region), tuple(tuple(each.shape) for each in region.parameters())) for region in found})


@contextmanager
def compiled(unet: UNet2DConditionModel, kinds: Kinds | None = None, *, bits_promised: bool = True) -> Iterator[None]:
    """Within, regions are compiled when they are first called with a shape; afterwards the UNet is as it was.
    Where no bits are promised, the compiler may time variants of a kernel and keep the fastest.

    Adapters have to be on already, and stay. Raises what the compiler raises, from the calls.
    """
    from torch.compiler._cache import CacheArtifactManager

    # What save_cache_artifacts gives are then the kernels of this job, and not of all that the engine ever did.
    with compiler_settings(unet.device), CacheArtifactManager.with_fresh_cache():
        try:
            begin_compiled(unet, kinds, bits_promised=bits_promised)
            yield
        finally:
            end_compiled(unet, kinds)


@contextmanager
def compiler_settings(device: torch.device) -> Iterator[None]:
    """Within, the compiler makes kernels for any number of shapes. To enter takes a seventh of a millisecond."""
    # Loading them takes a second, which jobs without kernels need not spend.
    from torch._dynamo import config as tracing
    from torch._inductor import config as inductor

    with ExitStack() as settings:
        settings.enter_context(tracing.patch(recompile_limit=NO_BOUND, accumulated_recompile_limit=NO_BOUND))
        if device.type == "cpu":
            # Each further thread is a process that loads torch, which takes longer than most C++ files.
            settings.enter_context(inductor.patch(compile_threads=1))
        yield


def begin_compiled(
    unet: UNet2DConditionModel,
    kinds: Kinds | None = None,
    *,
    bits_promised: bool = True,
    backend: Backend = INDUCTOR,
) -> None:
    """From now on regions are compiled when they are called with a new shape, which needs `compiler_settings`."""
    options = {"deterministic": bits_promised} if backend == INDUCTOR else None
    for region in regions(unet, kinds):
        region.compile(dynamic=False, backend=backend, options=options)


def end_compiled(unet: UNet2DConditionModel, kinds: Kinds | None = None) -> None:
    """Take the kernels off the UNet, and let torch forget all that it compiled."""
    for region in regions(unet, kinds):
        region._compiled_call_impl = None  # torch has no other way back
    torch._dynamo.reset()


@contextmanager
def plainly(unet: UNet2DConditionModel, kinds: Kinds | None = None) -> Iterator[None]:
    """Within `compiled`: regions run without their kernels for a while, and keep them."""
    found = [(region, region._compiled_call_impl) for region in regions(unet, kinds)]
    for region, _ in found:
        region._compiled_call_impl = None
    try:
        yield
    finally:
        for region, kernels in found:
            region._compiled_call_impl = kernels


def compiler_of(device: torch.device, which: Which = shutil.which) -> str | None:
    """Return the name and version of the program that makes kernels for the device; None where it is not
    installed."""
    if device.type == "cuda":
        # Triton compiles the little program that launches a kernel with the C compiler.
        host = next(filter(None, map(which, ("gcc", "clang", "cc"))), None)
        return _package("triton") if host else None
    from torch._inductor import config as inductor

    path = next((path for name in inductor.cpp.cxx if name and (path := which(name))), None)
    return None if path is None else _says(path)


def _package(name: str) -> str | None:
    try:
        return f"{name} {version(name)}"
    except PackageNotFoundError:
        return None


def _says(path: str) -> str | None:
    """Return the first line of `--version`; None for a program that cannot be run."""
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return None
    return next(iter(said.stdout.splitlines()), "").strip() or path
