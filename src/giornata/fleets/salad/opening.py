"""Open a SaladCloud fleet, and the verifier of its nodes' tokens, from options and dependencies."""

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import httpx

from giornata.control.ports.identities import WorkloadIdentities
from giornata.domain.billing.money import MICRO_USD
from giornata.domain.errors import Fault, FleetRefused, GiornataError, InvalidInput
from giornata.fleets.opening import FleetDependencies, faults_of_environment
from giornata.fleets.salad.calls import SaladCalls
from giornata.fleets.salad.client import RateLimiter, RetryPauses, SaladClient, rate_limiter_of
from giornata.fleets.salad.container_groups import MOST_GROUPS, SUFFIX, is_kept
from giornata.fleets.salad.driver import SaladFleet
from giornata.fleets.salad.identity import KeySet, SaladGroup, SaladIdentities
from giornata.fleets.salad.options import LONGEST_VALUE, NAME, SaladOptions
from giornata.fleets.salad.translation import container_of

NAME_HINT = "2 to 63 small letters, digits and hyphens, beginning with a letter"

NOWHERE = frozenset({"localhost", "0.0.0.0", "::1", "::", ""})  # noqa: S104, nothing is bound


def open_fleet(
    name: str,
    options: SaladOptions,
    dependencies: FleetDependencies,
    *,
    transport: httpx.BaseTransport | None = None,
    pauses: RetryPauses | None = None,
    rate_limiter: RateLimiter | None = None,
) -> SaladFleet:
    """A fleet by this name. Asks the provider nothing yet. Raises InvalidInput with every fault."""
    faults = _faults(name, options, dependencies)
    if faults:
        raise InvalidInput(faults)
    api_key = dependencies.environment[options.api_key_variable]
    http = httpx.Client(base_url=options.api_url, transport=transport)
    client = SaladClient(
        http=http,
        api_key=api_key,
        rate_limiter=rate_limiter or rate_limiter_of(api_key, per_minute=options.requests_per_minute),
        pauses=pauses or RetryPauses(),
    )
    calls = SaladCalls(client, organization=options.organization, project=options.project)
    stable = functools.partial(
        _container, options, dependencies.environment, lambda: _env(name, options, dependencies)
    )
    identities = None
    if options.organization_id is not None:
        identities = open_identities({name: options}, now_ms=dependencies.now_ms, transport=transport)
    fleet = SaladFleet(
        name=name,
        group=first_group(name, options),
        options=options,
        calls=calls,
        fresh_container=stable,
        stable_container=stable,
        work=dependencies.work,
        identities=identities,
        let_go=http.close,
    )

    def fresh(gpu_classes: Sequence[str]) -> dict[str, Any]:
        env = _env(name, options, dependencies) | _fresh_env(options, dependencies, fleet)
        return _container(options, dependencies.environment, lambda: env, gpu_classes)

    fleet.fresh_container = fresh
    return fleet


def open_identities(
    fleets: Mapping[str, SaladOptions], *, now_ms: Callable[[], int], transport: httpx.BaseTransport | None = None
) -> WorkloadIdentities:
    """Return the check of tokens for nodes of those `fleets`, by name, whose options name their organization's id."""
    groups = [
        SaladGroup(
            fleet=name,
            organization_id=options.organization_id,
            group=first_group(name, options),
            group_id=options.group_id,
            issuer=options.issuer,
            keys_url=options.keys_url,
        )
        for name, options in fleets.items()
        if options.organization_id is not None
    ]
    http = httpx.Client(transport=transport)
    keys = {url: KeySet(http=http, url=url, now_ms=now_ms) for url in sorted({group.keys_url for group in groups})}
    return SaladIdentities(groups=groups, keys=keys, now_ms=now_ms)


def first_group(name: str, options: SaladOptions) -> str:
    """The first container group of the fleet `name`; the others have its name and a number."""
    return options.group or name


def _faults(name: str, options: SaladOptions, dependencies: FleetDependencies) -> list[Fault]:
    where = f"fleets.{name}.options"
    faults = faults_of_environment(options.env, where=f"{where}.env")
    if any(len(value) > LONGEST_VALUE for value in dependencies.work.environment(name).values()):
        message = f"are more than the {LONGEST_VALUE} characters that the provider takes, with their commands"
        faults.append(Fault(where=f"fleets.{name}.kinds", message=message, hint="put the commands into scripts"))
    if re.fullmatch(NAME, first_group(name, options)) is None:
        message = f"{first_group(name, options)!r} is not a name for a container group"
        faults.append(Fault(where=f"{where}.group", message=message, hint=NAME_HINT))
    elif is_kept(first_group(name, options)):
        message = f"{first_group(name, options)!r} is a name for a further container group of a large fleet"
        hint = f"set a group whose name does not end in {SUFFIX}2 to {SUFFIX}{MOST_GROUPS}"
        faults.append(Fault(where=f"{where}.group", message=message, hint=hint))
    variables = {"api_key_variable": options.api_key_variable}
    if options.registry is not None:
        variables["registry.password_variable"] = options.registry.password_variable
    faults += [
        Fault(where=f"{where}.{field}", message=f"{variable} is not set", hint="set it where the server runs")
        for field, variable in variables.items()
        if not dependencies.environment.get(variable)
    ]
    return faults


def _env(name: str, options: SaladOptions, dependencies: FleetDependencies) -> dict[str, str]:
    """Return the environment variables that all nodes share; the operator's own variables win.

    Raises FleetRefused for a server address that no node could reach: such nodes would be billed and never connect.
    """
    env = {"GIORNATA_URL": dependencies.server_url()} | dependencies.work.environment(name) | dict(options.env)
    host = httpx.URL(env["GIORNATA_URL"]).host
    if host in NOWHERE or host.startswith("127."):
        raise FleetRefused(f"nodes on SaladCloud cannot reach {env['GIORNATA_URL']}: set public_url")
    return env


def _fresh_env(options: SaladOptions, dependencies: FleetDependencies, fleet: SaladFleet) -> dict[str, str]:
    """Return the environment variables of a new container: its price, and a key without an organization's id."""
    env = {}
    if "GIORNATA_PRICE_USD_PER_HOUR" not in options.env:
        # That the node is needed is known now; what it costs may be found out later.
        with suppress(GiornataError):
            env["GIORNATA_PRICE_USD_PER_HOUR"] = str(fleet.price().micro_usd_per_hour / MICRO_USD)
    if options.organization_id is None and "GIORNATA_NODE_KEY" not in options.env:
        env["GIORNATA_NODE_KEY"] = dependencies.node_key()
    return env


def _container(
    options: SaladOptions,
    environment: Mapping[str, str],
    env: Callable[[], Mapping[str, str]],
    gpu_classes: Sequence[str],
) -> dict[str, Any]:
    password = environment.get(options.registry.password_variable) if options.registry is not None else None
    return container_of(options, gpu_classes=gpu_classes, env=env(), password=password)
