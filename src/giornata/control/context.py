"""The context that every use case is given: the ports, the clock and the process cache."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from giornata.control.memory.durations import Durations
from giornata.control.memory.ended_pictures import EndedPictures
from giornata.control.memory.process_cache import ProcessCache
from giornata.control.memory.request_rates import RequestRates
from giornata.control.policy import Policy
from giornata.control.ports.blobs import Blobs
from giornata.control.ports.clock import Clock, Names
from giornata.control.ports.fleet import FleetDriver
from giornata.control.ports.identities import NoIdentities, WorkloadIdentities
from giornata.control.ports.identity_provider import IdentityProvider, NoIdentityProvider
from giornata.control.ports.model_registry import ModelSources, NoModelSources
from giornata.control.ports.notifier import NoNotifier, Notifier
from giornata.control.ports.passwords import NoPasswords, Passwords
from giornata.control.ports.pictures import Pictures
from giornata.control.ports.sealing import NoSealer, Sealer
from giornata.control.ports.store import Store
from giornata.domain.fleets.fleet_plan import ScalingPolicy
from giornata.domain.machines.node_checks import NodeThresholds


@dataclass(frozen=True, slots=True, kw_only=True)
class GovernedFleet:
    """A fleet that the server governs. `name` is the one that its nodes say (`NodeInfo.fleet`); `kinds` are the
    kinds of job that its nodes take.
    """

    name: str
    driver: str
    fleet: FleetDriver
    kinds: tuple[str, ...] = ("train",)
    vram_bytes: int | None = None  # of a node that is still to come, when the operator says it
    places: int = 1
    scaling: ScalingPolicy = field(default_factory=ScalingPolicy)
    thresholds: NodeThresholds = field(default_factory=NodeThresholds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Foundations:
    """The context before the installation has a signing key, without which no URL of a blob can be signed.

    The sealer encrypts that key and projects' secrets.
    """

    store: Store
    clock: Clock
    names: Names
    memory: ProcessCache = field(default_factory=ProcessCache)
    sealer: Sealer = field(default_factory=NoSealer)
    durations: Durations = field(default_factory=Durations)
    ended_pictures: EndedPictures = field(default_factory=EndedPictures)
    request_rates: RequestRates = field(default_factory=RequestRates)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context(Foundations):
    """The ports and numbers of a use case: storage, time, fresh names, the inspector of pictures, the operator's
    numbers, fleets, identities, the sources that models are fetched from, the hashing of passwords, the sender of
    messages, and the provider at which people may sign in.
    """

    blobs: Blobs
    pictures: Pictures
    policy: Policy = field(default_factory=Policy)
    fleets: Mapping[str, GovernedFleet] = field(default_factory=dict)
    identities: WorkloadIdentities = field(default_factory=NoIdentities)
    model_sources: ModelSources = field(default_factory=NoModelSources)
    passwords: Passwords = field(default_factory=NoPasswords)
    notifier: Notifier = field(default_factory=NoNotifier)
    identity_provider: IdentityProvider = field(default_factory=NoIdentityProvider)
