"""What a fleet on SaladCloud can be told. Bounds are those of the provider's API (0.9)."""

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
    """How the provider gets at a private image. The password is read from a variable of the server's environment."""

    kind: Literal["basic", "docker_hub"] = "basic"
    username: str = Field(min_length=1)
    password_variable: Variable = Field("SALAD_REGISTRY_PASSWORD", description="Which variable holds the password.")


class Options(FleetOptions):
    """The container groups of a fleet on SaladCloud, and how to reach them."""

    organization: Name = Field(description="The organisation's name.")
    project: Name = Field(description="The project's name.")
    group: Name | None = Field(
        None,
        description="The first container group; a fleet of more than 500 nodes has further ones, of this name and a "
        "number. Default: the fleet's name.",
    )
    image: str = Field(min_length=1, max_length=2048, description="The node's image, with its tag or digest.")
    command: tuple[str, ...] = Field((), max_length=100, description="Default: the image's own.")
    gpu_classes: tuple[str, ...] = Field(
        min_length=1, max_length=100, description="Names or ids of GPU classes; the provider takes any of them."
    )
    cpu: int = Field(4, ge=1, le=1024, description="Virtual cores.")
    memory_mb: int = Field(16_384, ge=1024, description="Main memory, in MiB.")
    shm_mb: int = Field(64, ge=64, description="Shared memory, in MiB.")
    storage_bytes: int = Field(50 * GIB, ge=GIB, description="Disk.")
    priority: Priority = Field("batch", description="Dearer ones are interrupted less.")
    country_codes: tuple[Annotated[str, StringConstraints(pattern=r"^[a-z]{2}$")], ...] = Field(
        (), description="Where machines may stand, such as us or no. Default: anywhere."
    )
    env: dict[Variable, Value] = Field(default_factory=dict, description="Further variables of the container.")
    registry: Registry | None = Field(None, description="For a private image.")
    image_caching: bool = Field(True, description="Let the provider keep the image near its machines.")
    restart_policy: Literal["always", "on_failure", "never"] = Field("always", description="When a container exits.")
    organization_id: Uuid | None = Field(
        None, description="With it nodes prove who they are by the provider's token and carry no key."
    )
    group_id: Uuid | None = Field(
        None,
        description="Take tokens of the group with this id only. The fleet then has one group: 500 nodes at most.",
    )
    issuer: str | None = Field(None, description="What tokens have to name as their issuer, if they name any.")
    price_usd_per_hour: float | None = Field(None, gt=0, le=1000, description="Instead of the provider's list.")
    price_beside_gpu_usd_per_hour: float = Field(
        0.0, ge=0, le=1000, description="Cores and memory, which the provider's price list does not name."
    )
    api_key_variable: Variable = Field("SALAD_API_KEY", description="Which variable of the server holds the API key.")
    api_url: str = Field(API_URL, pattern=r"^https?://")
    keys_url: str = Field(KEYS_URL, pattern=r"^https?://")
    requests_per_minute: int = Field(200, ge=1, le=240, description="The provider allows 240 for each API key.")
