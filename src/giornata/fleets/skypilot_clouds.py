"""Whether the clouds of a fleet can launch what its options ask for, found out before anything is launched.

SkyPilot passes over a cloud that lacks a feature: the launch fails, or the cloud is never used, for as long as the
fleet asks. What each cloud lacks is SkyPilot's own knowledge, and it is asked of the installed package.
"""

import logging
from collections.abc import Sequence
from typing import Any

from giornata.domain.errors import Fault, FleetRefused, FleetUnavailable
from giornata.fleets.skypilot_errors import asking
from giornata.fleets.skypilot_task import Options, resources_of

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


def faults_of_clouds(sky: Any, options: Options, infra: Sequence[str], *, where: str) -> list[Fault]:
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


def check_enabled_clouds(sky: Any, options: Options) -> None:
    """For a fleet that may be anywhere. Raises FleetRefused when none of the clouds that SkyPilot has access to can
    launch a node."""
    with asking(sky):
        enabled: list[str] = sky.get(sky.client.sdk.enabled_clouds())
    faults = {cloud: faults_of_clouds(sky, options, [cloud], where="options") for cloud in enabled}
    if faults and all(faults.values()):
        words = "; ".join(f"{fault.message} ({fault.hint})" for each in faults.values() for fault in each)
        raise FleetRefused(f"no cloud that SkyPilot has access to can launch a node: {words}")


def _lacking(sky: Any, options: Options, task: Any) -> list[str]:
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
