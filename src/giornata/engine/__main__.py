"""Runs the process that owns the GPU: `python -m giornata.engine`. The agent starts it, never a person."""

import argparse
import os
import sys
from collections.abc import MutableMapping, Sequence
from pathlib import Path

from giornata.domain.errors import InvalidInput
from giornata.engine.assignment import PipeWriter
from giornata.engine.device import free_vram_bytes, prepare_device
from giornata.engine.engine import Engine
from giornata.engine.kinds import KernelPlace, check_kinds, make_workloads
from giornata.engine.process_setup import SELDOM, absent, die_with_parent, kept_for_good, take_stdout
from giornata.protocol import VERSION
from giornata.protocol.node.pipe import Hello
from giornata.protocol.training.optimization import Compile

EXIT_UNUSABLE = 64
KERNEL_DIRECTORY = "TORCHINDUCTOR_CACHE_DIR"  # torch's own name
KERNEL_KEY = "GIORNATA_COMPILE_CACHE_KEY"


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line that the agent writes."""
    parser = argparse.ArgumentParser(prog="giornata.engine", description=__doc__)
    parser.add_argument("--kinds", default="train", help="comma-separated kinds of work")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads; part of what bits depend on")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--model-cache-bytes", type=int, help="bound of the models fetched from the hub")
    parser.add_argument("--host-model-bytes", type=int, default=0, help="bound of the base models in host memory")
    parser.add_argument("--compile", type=Compile, choices=tuple(Compile), default=Compile.AUTO, help="for pictures")
    parser.add_argument("--places", type=int, default=1, help="jobs that may train in one batch")
    return parser.parse_args(arguments)


def kernel_place(environment: MutableMapping[str, str]) -> KernelPlace:
    """Return the agent's place for kernels, and remove the key from the environment that compilers inherit."""
    directory, key = environment.get(KERNEL_DIRECTORY), environment.pop(KERNEL_KEY, None)
    return KernelPlace(
        directory=None if directory is None else Path(directory), secret=None if key is None else key.encode()
    )


def main(arguments: Sequence[str]) -> int:
    """Build the workloads, say hello and serve the agent."""
    die_with_parent()
    options = parse(arguments)
    channel, kernels = PipeWriter(take_stdout()), kernel_place(os.environ)
    kinds = options.kinds.split(",")
    try:
        check_kinds(kinds)
        with kept_for_good(), absent(*SELDOM):
            device = prepare_device(options.device, options.threads)
            workloads = make_workloads(
                kinds,
                device.name,
                places=options.places,
                model_cache_bytes=options.model_cache_bytes,
                host_model_bytes=options.host_model_bytes,
                compile=options.compile,
                kernels=kernels,
            )
    except InvalidInput as error:
        sys.stderr.write(f"engine: {error}\n")
        return EXIT_UNUSABLE
    hello = Hello(
        protocol=VERSION,
        pid=os.getpid(),
        kinds=tuple(workloads),
        device=device.description,
        vram_bytes=device.vram_bytes,
        free_vram_bytes=free_vram_bytes() if device.name == "cuda" else None,
        versions=device.versions,
    )
    engine = Engine(workloads=workloads, stdin=sys.stdin.buffer, channel=channel, leave=os._exit)
    return engine.run(hello)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stderr.flush()
    # Not sys.exit: threads of libraries and a lost CUDA context must not keep the process, and with it the GPU.
    os._exit(code)
