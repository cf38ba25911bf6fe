"""What a node lends to each of its attempts."""

import random
from dataclasses import dataclass

from giornata.agent.blob_cache import BlobCache
from giornata.agent.departure import Departure
from giornata.agent.engines import Engines
from giornata.agent.held_lease import Monotonic
from giornata.agent.settings import AgentSettings
from giornata.agent.transport import Storage
from giornata.client.node import NodeClient


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Shared by all attempts of a node: one after the other, or several at the same time."""

    settings: AgentSettings
    node: NodeClient
    storage: Storage
    cache: BlobCache
    engines: Engines
    departure: Departure
    monotonic_s: Monotonic
    rng: random.Random
