"""Options of a fleet on SaladCloud. Bounds are those of the provider's API (0.9)."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from giornata.fleets.opening import FleetOptions

API_URL = "https://api.salad.com/api/public"
KEYS_URL = "https://matrix-rest-api.salad.com/.well-known/workload-jwks.json"
NAME = r"^[a-z][a-z0-9-]{0,61}[a-z0-9]$"
UUID = r"^[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}$"
VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$"
GIB = 2**30
MOST_REPLICAS = 500
LONGEST_VALUE = 1000  # of a variable, in characters

Name = Annotated[str, StringConstraints(pattern=NAME)]
Uuid = Annotated[str, StringConstraints(pattern=UUID)]
Variable = Annotated[str, StringConstraints(pattern=VARIABLE)]
# The provider takes no empty values.
Value = Annotated[str, StringConstraints(min_length=1, max_length=LONGEST_VALUE)]
Priority = Literal["high", "medium", "low", "batch"]


class Registry(FleetOptions):
    """The provider's access to a private image. The password is read from a variable of the server's environment."""

    kind: Literal["basic", "docker_hub"] = "basic"
    username: str = Field(min_length=1)
    password_variable: Variable = Field(
        "SALAD_REGISTRY_PASSWORD", description="Environment variable of the server with the registry's password."
    )


class SaladOptions(FleetOptions):
    """The container groups of a fleet on SaladCloud, and how to reach them."""

    organization: Name = Field(description="Name of the organization.")
    project: Name = Field(description="Name of the project.")
    group: Name | None = Field(
        None,
        description="Name of the first container group. A fleet of more than 500 nodes has further groups with "
        "this name and a number. Default: the name of the fleet.",
    )
    image: str = Field(
        min_length=1, max_length=2048, description="Container image of the node, with its tag or digest."
    )
    command: tuple[str, ...] = Field(
        (), max_length=100, description="Command of the container. Default: the command of the image."
    )
    gpu_classes: tuple[str, ...] = Field(
        min_length=1, max_length=100, description="Names or ids of GPU classes. The provider may use any of them."
    )
    cpu: int = Field(4, ge=1, le=1024, description="Number of virtual CPU cores.")
    memory_mb: int = Field(16_384, ge=1024, description="Main memory in MiB.")
    shm_mb: int = Field(64, ge=64, description="Shared memory in MiB.")
    storage_bytes: int = Field(50 * GIB, ge=GIB, description="Disk space in bytes.")
    priority: Priority = Field(
        "batch",
        description="Priority of the container group. Higher priorities cost more and are interrupted less often.",
    )
    country_codes: tuple[Annotated[str, StringConstraints(pattern=r"^[a-z]{2}$")], ...] = Field(
        (), description="Countries in which machines may be, such as us or no. Default: all countries."
    )
    env: dict[Variable, Value] = Field(
        default_factory=dict, description="Additional environment variables of the container."
    )
    registry: Registry | None = Field(
        None, description="Credentials for a private image registry. Default: the image is public."
    )
    image_caching: bool = Field(True, description="true: the provider caches the image near its machines.")
    restart_policy: Literal["always", "on_failure", "never"] = Field(
        "always", description="Exits after which the provider restarts a container."
    )
    organization_id: Uuid | None = Field(
        None,
        description="Id of the organization. With the id, nodes authenticate by the provider's token and carry no "
        "key.",
    )
    group_id: Uuid | None = Field(
        None,
        description="Id of the only container group whose tokens are accepted. The fleet then has one group, with "
        "at most 500 nodes.",
    )
    issuer: str | None = Field(
        None, description="Expected issuer of tokens that name an issuer. Default: any issuer."
    )
    price_usd_per_hour: float | None = Field(
        None,
        gt=0,
        le=1000,
        description="Price of one node in US dollars per hour. Default: the provider's price list.",
    )
    price_beside_gpu_usd_per_hour: float = Field(
        0.0,
        ge=0,
        le=1000,
        description="Price of CPU cores and memory in US dollars per hour, which the provider's price list does "
        "not contain.",
    )
    api_key_variable: Variable = Field(
        "SALAD_API_KEY", description="Environment variable of the server with the API key."
    )
    api_url: str = Field(API_URL, pattern=r"^https?://", description="URL of SaladCloud's API.")
    keys_url: str = Field(
        KEYS_URL, pattern=r"^https?://", description="URL of the keys that verify the provider's tokens."
    )
    requests_per_minute: int = Field(
        200,
        ge=1,
        le=240,
        description="Maximum number of API requests per minute. The provider allows 240 for each API key.",
    )
