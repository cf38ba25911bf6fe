"""Ray: this machine's own, begun for one command, or a cluster that is there already."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
import ray.data

from giornata.domain.errors import Fault, InvalidInput, Unavailable

OBJECT_STORE_BYTES = 2 * 2**30
LEAST_CPUS = 8
"""Ray reserves a processor for every trainer, and Ray Data needs some beside them. On a small machine these are only
numbers to schedule by."""
CHATTY = "ray.train", "ray.data", "ray"


@contextmanager
def connected(address: str | None, *, object_store_bytes: int = OBJECT_STORE_BYTES) -> Iterator[None]:
    """Ray, until the end of the block.

    Raises Unavailable when nobody answers at `address`, and InvalidInput for one that cannot be.
    """
    # Tasks and actors write to Ray's own log files; what people should see comes from the board.
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        cpus = max(LEAST_CPUS, os.cpu_count() or 1)
        options |= {
            "address": "local",
            "num_cpus": cpus,
            "include_dashboard": False,
            "object_store_memory": object_store_bytes,
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
