"""Ray: this machine's own, begun for one command, or a cluster that is there already."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
import ray.data
from ray._private.utils import estimate_available_memory, resolve_object_store_memory

from giornata.domain.errors import Fault, InvalidInput, Unavailable

LEAST_OBJECT_STORE_BYTES = 2 * 2**30
LEAST_CPUS = 8
"""Ray reserves a processor for every trainer, and Ray Data needs some beside them. On a small machine these are only
numbers to schedule by."""
CHATTY = "ray.train", "ray.data", "ray"


def object_store_bytes(available_bytes: int) -> int:
    """Ray's own default (30 % of the unused memory, at most what /dev/shm has and 200 GB), and not less than
    LEAST_OBJECT_STORE_BYTES."""
    return max(LEAST_OBJECT_STORE_BYTES, resolve_object_store_memory(available_bytes))


@contextmanager
def connected(address: str | None, *, least_cpus: int = LEAST_CPUS) -> Iterator[None]:
    """Ray, until the end of the block. A Ray of this machine has at least so many processors to schedule by.

    Raises Unavailable when nobody answers at `address`, and InvalidInput for one that cannot be.
    """
    # Tasks and actors write to Ray's own log files; what people should see comes from the progress actor.
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        cpus = max(least_cpus, os.cpu_count() or 1)
        options |= {
            "address": "local",
            "num_cpus": cpus,
            "include_dashboard": False,
            "object_store_memory": object_store_bytes(estimate_available_memory()),
        }
    else:
        options["address"] = address
    for name in CHATTY:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        ray.init(**options)
    except ValueError as error:
        raise InvalidInput([Fault(where="--address", message=str(error))]) from None
    except (ConnectionError, TimeoutError, RuntimeError) as error:
        raise Unavailable(f"no Ray answers at {address or 'this machine'}: {error}") from None
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    try:
        yield
    finally:
        ray.shutdown()
