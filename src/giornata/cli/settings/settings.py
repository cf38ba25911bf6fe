"""The one place where configuration comes from: defaults < file < GIORNATA_* < flags."""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from giornata.cli.settings.fleet_settings import FleetName, FleetTable
from giornata.domain.datasets import MAX_DATASET_ITEMS
from giornata.domain.errors import Fault, InvalidInput

if TYPE_CHECKING:
    from giornata.blobs.s3 import S3Credentials


def default_data_directory() -> Path:
    """`$XDG_DATA_HOME/giornata`, or `~/.local/share/giornata`."""
    home = os.environ.get("XDG_DATA_HOME")
    return (Path(home) if home else Path.home() / ".local" / "share") / "giornata"


class Settings(BaseSettings):
    """Every setting there is. `docs/settings.md` lists them, and a test compares the two."""

    model_config = SettingsConfigDict(env_prefix="GIORNATA_", frozen=True, extra="forbid")

    # everybody
    url: str | None = Field(None, description="The server. Default: the one that runs on the data directory.")
    api_key: str | None = Field(None, description="Your key. Default: the embedded installation's own.")
    data: Path = Field(
        default_factory=default_data_directory, description="Where `up` keeps its database, blobs, logs and key."
    )

    # server
    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8470, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    public_url: str | None = Field(None, description="How nodes and users reach the server, when not host and port.")
    database: str | None = Field(None, description="sqlite:///FILE or postgresql://…; default: SQLite in data.")
    blobs: str | None = Field(
        None, description="file:///DIR or s3://BUCKET/PREFIX?endpoint=…&region=…; default: a folder in data."
    )
    s3_access_key_id: str | None = Field(None, description="Default: what boto3 finds by itself.")
    s3_secret_access_key: str | None = Field(None, description="Default: what boto3 finds by itself.")
    secrets_key: str | None = Field(
        None,
        description=(
            "A Fernet key. It encrypts the server's signing key and projects' secrets in the database. All servers "
            "of a database need the same key. Default: made once in data, with SQLite; PostgreSQL needs the setting."
        ),
    )
    admin_key: str | None = Field(
        None,
        description=(
            "An admin key of the operator's project, such as one from a Secret. The server installs it at its start, "
            "and revokes the key that this setting named before. Default: none; the first start draws a key and "
            "writes it to admin.key in data."
        ),
    )
    admin_key_file: Path | None = Field(
        None,
        description="A file with the admin key, instead of admin_key; read at the start of the server.",
    )
    cors_origins: tuple[str, ...] = Field((), description="Web origins that may call the API from a browser.")
    lease_s: float = Field(90.0, ge=1, le=3600, description="How long a node may be silent.")
    max_at_risk_s: float = Field(60.0, ge=1, description="Most seconds of work between two checkpoints (auto).")
    min_pictures: int = Field(1, ge=1, description="Fewest pictures that a dataset may have.")
    max_pictures: int = Field(
        1000,
        ge=1,
        le=MAX_DATASET_ITEMS,
        description="Most pictures that a dataset of a project may have, where `giornata project limits` says "
        "nothing else. A run without a server (--standalone) has no such limit.",
    )
    upload_url_s: float = Field(900.0, ge=1, le=604_800, description="How long a URL to upload by is good.")
    garbage_after_s: float = Field(86_400.0, ge=0, description="How long bytes that nobody committed are kept.")
    streams_per_key: int = Field(1000, ge=1, description="Most event streams that a key may have open on a server.")
    waiting_claims_per_key: int = Field(
        10_000, ge=1, description="Most claims of a node key that may wait at one time on a server."
    )
    max_node_price_usd_per_hour: float = Field(
        100.0,
        ge=0,
        le=100_000,
        description="Highest price in dollars an hour that a node may name, unless its key says otherwise. A node "
        "that names more gets no work. In fleets with a price of their own the node's word does not count.",
    )
    new_machines: Literal["trusted", "probation"] = Field(
        "trusted",
        description="Whether a machine that nobody knows gets work at once, or a canary first.",
    )
    quarantine_failures: int = Field(3, ge=1, le=100, description="So many failures of a machine end its work …")
    quarantine_within_s: float = Field(600.0, ge=1, description="… within so many seconds.")
    quarantine_s: float = Field(
        900.0, ge=1, description="How long the first quarantine of a machine lasts; each in a row twice as long."
    )
    retry_pause_s: float = Field(
        10.0,
        ge=0.1,
        description="Seconds until a job goes back to a machine that failed it, where no other can take it. Each "
        "further attempt without progress waits three times as long.",
    )
    longest_retry_pause_s: float = Field(
        900.0,
        ge=0.1,
        description="Most seconds of that pause, and until a job fails that needs more GPU memory than every "
        "connected node has.",
    )
    reallocations_share: float = Field(
        0.1, gt=0, le=1, description="Of a fleet's nodes, at most this part is replaced for bad health in an hour."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="How much is logged.")
    log_format: Literal["text", "json"] = Field(
        "text",
        description=(
            "How a server and a node write their logs. text: a line for people. json: one object a line with ts, "
            "level, logger, message and, where known, request_id, job, attempt and node."
        ),
    )

    # fleet and node
    nodes: int = Field(
        1,
        ge=0,
        le=256,
        description="Nodes that `up` runs on this machine. With max_nodes: the fewest, by default none. With fleets "
        "in the settings: by default none.",
    )
    max_nodes: int | None = Field(
        None,
        ge=1,
        le=256,
        description="Most nodes that `up` runs on this machine: it starts and ends them as the queue needs them. "
        "Default: as many as nodes, all the time.",
    )
    fleets: dict[FleetName, FleetTable] = Field(
        default_factory=dict, description="Fleets that the server looks after, by name; see below."
    )
    node_key: str | None = Field(None, description="A key of scope node.")
    machine_id: str | None = Field(None, description="Names the hardware; bans stick to it. Default: made once.")
    node_name: str | None = Field(None, description="For people. Default: the machine's id.")
    fleet: str = Field("static", description="Name of the fleet that the node belongs to.")
    instance_id: str | None = Field(
        None, pattern=r"^[A-Za-z0-9._:/-]{1,128}$", description="What the provider calls this container or process."
    )
    provider: Literal["auto", "none", "salad"] = Field(
        "auto", description="Who lends the node's machine. auto: what the node finds itself on."
    )
    price_usd_per_hour: float = Field(
        0.0, ge=0, le=100_000, description="What an hour of this node costs, with the Ray cluster behind it, if any."
    )
    kinds: tuple[str, ...] = Field(("train",), description="Kinds of job that the node takes.")
    workloads: dict[str, str] = Field(
        default_factory=dict, description="Your own kinds: x-NAME = command line of a program that speaks the pipe."
    )
    work_directory: Path | None = Field(None, description="Scratch space of the node. Default: below data.")
    cache_bytes: int = Field(20 * 2**30, ge=0, description="Bound of the node's cache of inputs.")
    model_cache_bytes: int = Field(
        100 * 2**30, ge=0, description="Bound of the models that the node has fetched from the hub."
    )
    shared_compile_cache: bool = Field(
        False, description="Fetch compiled kernels from other nodes, and share one's own; needs compile_cache_key."
    )
    compile_cache_key: str | None = Field(
        None, description="Seals shared kernels, which are code: only nodes that you trust may have it."
    )
    threads: int = Field(1, ge=1, le=256, description="CPU threads of the engine; part of a result's fingerprint.")
    device: str = Field("auto", description="auto, cpu or cuda.")
    places: int = Field(
        1,
        ge=1,
        le=64,
        description="Jobs that a node may train in one batch, as far as its memory goes; see training.md.",
    )
    join_for_s: float = Field(
        3600.0, ge=0, description="How long others may join a batch after its first job; then it has to become empty."
    )
    grace_s: float = Field(30.0, ge=0, description="Time for the last checkpoint after SIGTERM.")
    stall_s: float = Field(600.0, ge=1, description="An engine without a step for this long is ended.")

    # standalone
    webhook_secret: str | None = Field(
        None, description="Signs what `train --standalone --webhook URL` sends: whsec_BASE64, or any text."
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags win over the environment, and the environment over the file."""
        del dotenv_settings, file_secret_settings
        file = TomlConfigSettingsSource(settings_cls)
        return init_settings, env_settings, file


def load_settings(config: Path | None = None, **flags: Any) -> Settings:
    """Settings from all sources; a flag that is None was not given. Raises InvalidInput with every fault."""
    if config is not None and not config.is_file():
        raise InvalidInput([Fault(where="--config", message=f"no such file: {config}")])

    class _WithFile(Settings):
        model_config = SettingsConfigDict(toml_file=config or Path("giornata.toml"))

    try:
        return _WithFile(**{name: value for name, value in flags.items() if value is not None})
    except ValidationError as error:
        raise InvalidInput(
            Fault(where=".".join(map(str, fault["loc"])), message=fault["msg"]) for fault in error.errors()
        ) from None


# As `giornata key create` makes them: nobody guesses 32 random characters.
ADMIN_KEY = re.compile(r"gk_[0-9a-f]{8}_[A-Za-z0-9_-]{32,200}", re.ASCII)
ADMIN_KEY_HINT = (
    "make one with: python -c 'import secrets; print(f\"gk_{secrets.token_hex(4)}_{secrets.token_urlsafe(32)}\")'"
)


def admin_key_of(settings: Settings) -> str | None:
    """The key of `admin_key`, or the one in `admin_key_file`. Raises InvalidInput, which does not repeat the key."""
    key, file = settings.admin_key, settings.admin_key_file
    if key and file:
        raise InvalidInput([Fault(where="admin_key", message="admin_key_file is set as well", hint="leave one out")])
    where = "admin_key_file" if file else "admin_key"
    if file:
        try:
            key = file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            hint = "mount the Secret there, or leave the setting out"
            raise InvalidInput([Fault(where=where, message=f"{file} cannot be read: {error}", hint=hint)]) from None
    if not key and not file:
        return None
    if ADMIN_KEY.fullmatch(key or "") is None:
        message = "is not gk_, 8 hexadecimal digits, _ and 32 to 200 letters, digits, - or _"
        raise InvalidInput([Fault(where=where, message=message, hint=ADMIN_KEY_HINT)])
    return key


def s3_credentials_of(settings: Settings) -> "S3Credentials | None":
    """The keys that the settings hold; None leaves it to what boto3 finds by itself."""
    key_id, secret = settings.s3_access_key_id, settings.s3_secret_access_key
    if key_id is None or secret is None:
        return None
    from giornata.blobs.s3 import S3Credentials

    return S3Credentials(access_key_id=key_id, secret_access_key=secret)


def storage_url(place: str) -> str:
    """A URL as it is, a folder as a `file:` URL."""
    return place if "://" in place else Path(place).expanduser().resolve().as_uri()
