"""SaladCloud's documents in our words, and ours in its."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from typing import Any

from giornata.control.ports.fleet import Instance, InstanceState, Limits
from giornata.domain.billing.money import MICRO_USD
from giornata.domain.errors import FleetRefused, FleetUnavailable
from giornata.fleets.salad.calls import Document
from giornata.fleets.salad.options import SaladOptions

# What is not named here is none that we know, and none that is billed.
STATES: Mapping[str, InstanceState] = {
    "allocating": InstanceState.STARTING,
    "downloading": InstanceState.STARTING,
    "creating": InstanceState.STARTING,
    "running": InstanceState.RUNNING,
    "stopping": InstanceState.STOPPING,
}
# https://docs.salad.com: a machine that was reallocated is not given to the same group for two days.
EXCLUDED_AFTER_REALLOCATION_S = 48 * 3600.0
MOST_DELETION_COST = 100_000
DRAINED_COST = 10  # more than of those that the number falls for, less than of all that stay
AT_REST = frozenset({"stopped", "failed", "succeeded"})


def instance_of(row: Document) -> Instance:
    """Translate a row of the listing. Raises FleetUnavailable without an id: a listing is whole, or an error."""
    # Older payloads say instance_id, and older ones yet the machine's id alone.
    instance_id = row.get("id") or row.get("instance_id") or row.get("machine_id")
    if not isinstance(instance_id, str):
        raise FleetUnavailable("SaladCloud lists an instance without an id")
    machine_id = row.get("machine_id")
    state = STATES.get(str(row.get("state")), InstanceState.STARTING)
    return Instance(
        id=instance_id,
        machine_id=str(machine_id) if machine_id else None,
        state=state,
        running_since_ms=_epoch_ms(row.get("update_time")) if state is InstanceState.RUNNING else None,
    )


def _epoch_ms(text: object) -> int | None:
    """Return the instance's last change of state; None where the provider's form is unknown."""
    try:
        at = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return None if at.tzinfo is None else round(at.timestamp() * 1000)


def gpu_class_by_instance(logs: Sequence[Document]) -> dict[str, str]:
    """The GPU class that each instance has, as far as these entries of the system log say."""
    return {
        str(each["instance_id"]): str(each["resource_gpu_class"])
        for each in logs
        if each.get("instance_id") and each.get("resource_gpu_class")
    }


def status_of(group: Document) -> str:
    """`pending`, `running`, `stopped`, `succeeded`, `failed` or `deploying`."""
    state = group.get("current_state")
    return str(state.get("status")) if isinstance(state, dict) else "pending"


def replicas_of(group: Document) -> int:
    """Return the number of instances that the group shall have once started."""
    replicas = group.get("replicas")
    return replicas if isinstance(replicas, int) else 0


def deletion_cost(instance: Instance, *, leaving: bool, drained: bool = False) -> int:
    """Return the deletion cost: leaving nodes go first, then drained and starting ones, running ones last."""
    if leaving or drained:
        return 0 if leaving else DRAINED_COST
    return min(MOST_DELETION_COST, 1000 if instance.state is InstanceState.RUNNING else 100)


def container_of(
    options: SaladOptions, *, gpu_classes: Sequence[str], env: Mapping[str, str], password: str | None
) -> dict[str, Any]:
    """The container as the provider is to run it; `gpu_classes` are ids."""
    container: dict[str, Any] = {
        "image": options.image,
        "resources": {
            "cpu": options.cpu,
            "memory": options.memory_mb,
            "gpu_classes": list(gpu_classes),
            "storage_amount": options.storage_bytes,
            "shm_size": options.shm_mb,
        },
        "environment_variables": dict(env),
        "priority": options.priority,
        "image_caching": options.image_caching,
    }
    if options.command:
        container["command"] = list(options.command)
    if options.registry is not None and password is not None:
        secret = "password" if options.registry.kind == "basic" else "personal_access_token"
        access = {"username": options.registry.username, secret: password}
        container["registry_authentication"] = {options.registry.kind: access}
    return container


def prototype_of(options: SaladOptions, *, name: str, container: Document, replicas: int) -> dict[str, Any]:
    """Return the request that creates the container group with `replicas` replicas."""
    countries = {"country_codes": list(options.country_codes)} if options.country_codes else {}
    return {
        "name": name,
        "container": dict(container),
        "autostart_policy": True,
        "restart_policy": options.restart_policy,
        "replicas": replicas,
        **countries,
    }


def differences(group: Document, container: Document) -> list[str]:
    """Name the parts of the group's container that differ from the settings, as far as the provider tells.

    Variables that somebody added are no difference. The provider never tells passwords.
    """
    has = group.get("container")
    has = has if isinstance(has, dict) else {}
    found = ["image"] if has.get("image") != container["image"] else []
    env, wanted = has.get("environment_variables") or {}, container["environment_variables"]
    found += [f"env.{name}" for name in sorted(wanted) if env.get(name) != wanted[name]]
    given, asked = has.get("resources") or {}, container["resources"]
    found += [name for name in asked if name in given and _plain(given[name]) != _plain(asked[name])]
    if "priority" in group and group["priority"] != container["priority"]:
        found.append("priority")
    if "command" in container and has.get("command") != container["command"]:
        found.append("command")
    return found


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, list) else value


def class_ids(classes: Sequence[Document], wanted: Sequence[str]) -> dict[str, Document]:
    """The GPU classes that are named, by id. Raises FleetRefused with every name that there is no class for."""
    found: dict[str, Document] = {}
    missing = []
    for name in wanted:
        matching = [
            each
            for each in classes
            if name.strip().casefold() in (str(each.get("id")).casefold(), str(each.get("name")).strip().casefold())
        ]
        found |= {str(each["id"]): each for each in matching}
        missing += [] if matching else [name]
    if missing:
        known = ", ".join(sorted(str(each.get("name")) for each in classes)) or "none"
        raise FleetRefused(f"SaladCloud has no GPU class {', '.join(map(repr, missing))}; it has: {known}")
    return found


def micro_usd(price: object) -> int:
    """A price in the provider's letters, such as "0.324" or "$0.20". Raises FleetUnavailable when it is none."""
    try:
        amount = Decimal(str(price).strip().removeprefix("$"))
        if not amount.is_finite() or amount < 0:
            raise InvalidOperation
    except InvalidOperation:
        raise FleetUnavailable(f"SaladCloud: {price!r} is not a price") from None
    return int((amount * MICRO_USD).quantize(Decimal(1), rounding=ROUND_HALF_UP))


def prices_by_class(classes: Mapping[str, Document], *, priority: str) -> dict[str, int]:
    """Micro-dollars an hour of each class by its name. Raises FleetRefused when none of them has a price."""
    prices = {
        str(each.get("name")): micro_usd(row.get("price"))
        for each in classes.values()
        for row in each.get("prices") or ()
        if row.get("priority") == priority
    }
    if not prices:
        raise FleetRefused(f"SaladCloud has no price for the priority {priority} of these GPU classes")
    return prices


def limits_of(quotas: Document, *, most_nodes: int, reason: str) -> Limits:
    """Return the limits of the organization. `most_nodes` is the rest of its replicas for this fleet."""
    return Limits(
        most_nodes=most_nodes,
        most_nodes_reason=reason,
        reallocations_per_minute=quotas.get("max_container_group_reallocations_per_minute"),
        excluded_after_reallocation_s=EXCLUDED_AFTER_REALLOCATION_S,
    )
