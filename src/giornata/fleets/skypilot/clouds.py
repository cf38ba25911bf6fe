"""Check, before any launch, that the clouds of a fleet can launch nodes with the fleet's options.

SkyPilot passes over a cloud that lacks a feature: the launch fails, or the cloud is never used, for as long as the
fleet asks. What each cloud lacks is SkyPilot's own knowledge, and it is asked of the installed package.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from giornata.control.ports.fleet import Instance, InstanceState
from giornata.domain.errors import Fault, FleetRefused, FleetUnavailable, GiornataError
from giornata.fleets.skypilot.task import SkyPilotOptions, resources_of

log = logging.getLogger(__name__)

ELSEWHERE = "or take the cloud out of infra"
# By what SkyPilot calls the feature: the option that asks for it, what is missing, and what to do.
FEATURES = {
    "spot_instance": ("use_spot", "has no spot machines", "set use_spot = false"),
    "autodown": (
        "idle_minutes_to_down",
        "has no machines that take themselves down",
        "set idle_minutes_to_down = 0: a machine is then billed until the server takes it down",
    ),
    "docker_image": ("image", "does not run container images", "set package in place of image"),
}


def faults_of_clouds(sky: Any, options: SkyPilotOptions, infra: Sequence[str], *, where: str) -> list[Fault]:
    """Everything that keeps one of these clouds from ever launching a node."""
    found = []
    for place in infra:
        try:
            with asking(sky):
                task = sky.Task.from_yaml_config({"resources": resources_of("", options, [place]), "run": "true"})
        except FleetRefused as error:
            found.append(Fault(where=f"{where}.infra", message=f"{place}: {error}", hint="see SkyPilot's words"))
            continue
        try:
            with asking(sky):
                found += [_fault(place, feature, where) for feature in _lacking(sky, options, task)]
        except (FleetRefused, FleetUnavailable) as error:  # a cluster that SkyPilot's own server may know
            log.warning("%s: what %s can do is not known here: %s", where, place, error)
    return found


def check_enabled_clouds(sky: Any, options: SkyPilotOptions) -> None:
    """Check the enabled clouds for a fleet that may be anywhere.

    Raises FleetRefused when none of the clouds that SkyPilot has access to can launch a node.
    """
    with asking(sky):
        enabled: list[str] = sky.get(sky.client.sdk.enabled_clouds())
    faults = {cloud: faults_of_clouds(sky, options, [cloud], where="options") for cloud in enabled}
    if faults and all(faults.values()):
        words = "; ".join(f"{fault.message} ({fault.hint})" for each in faults.values() for fault in each)
        raise FleetRefused(f"no cloud that SkyPilot has access to can launch a node: {words}")


def _lacking(sky: Any, options: SkyPilotOptions, task: Any) -> list[str]:
    """The features that the task needs and its cloud does not have."""
    autodown = sky.clouds.CloudImplementationFeatures.AUTODOWN
    found = []
    for resource in task.resources:
        if resource.cloud is None:  # any cloud, in a region by this name
            continue
        wanted = {*resource.get_required_cloud_features(), *([autodown] if options.idle_minutes_to_down else [])}
        for feature in sorted(wanted, key=lambda each: str(each.value)):
            try:
                resource.cloud.check_features_are_supported(resource, {feature}, resource.region)
            except sky.exceptions.NotSupportedError:
                found.append(str(feature.value))
    return found


def _fault(place: str, feature: str, where: str) -> Fault:
    option, lacks, hint = FEATURES.get(feature, ("infra", f"lacks {feature}", ""))
    return Fault(where=f"{where}.{option}", message=f"{place} {lacks}", hint=f"{hint}, {ELSEWHERE}".lstrip(", "))


REFUSED = (
    "APINotSupportedError", "APIVersionMismatchError", "ApiServerAuthenticationError", "CloudUserIdentityError",
    "ClusterOwnerIdentityMismatchError", "InvalidCloudConfigs", "InvalidCloudCredentials", "InvalidClusterNameError",
    "InvalidSkyPilotConfigError", "NoCloudAccessError", "NotSupportedError", "PermissionDeniedError",
    "UserRequestRejectedByPolicy",
)  # fmt: skip


@contextmanager
def asking(sky: Any) -> Iterator[None]:
    """SkyPilot's errors have no common root: those that it names, and those that its HTTP client has.

    Raises FleetRefused when asking again is no use, and FleetUnavailable otherwise.
    """
    named = vars(sky.exceptions)
    refused: tuple[type[Exception], ...] = tuple(named[name] for name in REFUSED if name in named)
    known = (each for each in named.values() if isinstance(each, type) and issubclass(each, Exception))
    # ImportError: the parts of SkyPilot for some cloud are not installed here.
    errors: tuple[type[Exception], ...] = (*known, RuntimeError, OSError, ImportError)
    try:
        yield
    except GiornataError:
        raise
    except refused as error:
        raise FleetRefused(f"SkyPilot refuses: {said(error)}") from error
    except errors as error:
        raise FleetUnavailable(f"SkyPilot cannot be asked: {said(error)}") from error
    except (ValueError, TypeError) as error:
        raise FleetRefused(f"SkyPilot does not accept the task: {said(error)}") from error


def said(error: BaseException) -> str:
    """The error in one line of a bounded length."""
    return f"{type(error).__name__}: {str(error)[:LONGEST_TROUBLE]}"


LONGEST_TROUBLE = 300


@dataclass(slots=True, kw_only=True)
class SkyPilotCluster:
    """One cluster, there or asked for."""

    up: bool = False
    broken: bool = False
    going: bool = False
    since_s: int = 0
    cloud: str = ""
    region: str = ""
    trouble: str = ""

    @classmethod
    def of(cls, record: Any) -> "SkyPilotCluster":
        status = record.status.value
        unhealthy = status == "INIT" and record.init_kind == "unhealthy"
        return cls(
            up=status == "UP",
            broken=status == "STOPPED" or unhealthy,
            going=status == "AUTOSTOPPING",
            since_s=record.launched_at,
            cloud=record.cloud or "",
            region=record.region or "",
            trouble="" if status == "UP" else str(record.init_status_reason or "")[:LONGEST_TROUBLE],
        )

    def instance(self, name: str) -> Instance:
        """Return the cluster as an instance of the control plane."""
        state = InstanceState.RUNNING if self.up else InstanceState.STARTING
        if self.going or self.broken:
            state = InstanceState.STOPPING
        return Instance(
            id=name,
            name=name,
            state=state,
            machine_id=name,
            running_since_ms=self.since_s * 1000 if self.up and self.since_s else None,
            trouble=self.trouble,
            offer=self.place,
        )

    @property
    def place(self) -> str:
        """`cloud/region`, as SkyPilot's own `infra` has it; empty while it is not known."""
        return f"{self.cloud}/{self.region}".lower() if self.cloud and self.region else ""

    def is_in(self, infra: str) -> bool:
        """Return True when the place matches `cloud[/region[/zone]]`, as far as cloud and region are known."""
        cloud, _, rest = infra.lower().partition("/")
        region = rest.partition("/")[0]
        return cloud in ("*", self.cloud.lower()) and region in ("", "*", self.region.lower())
