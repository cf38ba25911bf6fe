"""The one place where configuration comes from: defaults < file < GIORNATA_* < flags."""

import os
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, IPvAnyNetwork, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from giornata.cli.settings.fleet_settings import FleetName, FleetTable
from giornata.domain.errors import Fault, InvalidInput
from giornata.domain.files.datasets import MAX_DATASET_ITEMS
from giornata.domain.generation.picture import MOST_PICTURES, NODE_KINDS


def default_data_directory() -> Path:
    """Return `$XDG_DATA_HOME/giornata`; `XDG_DATA_HOME` defaults to `~/.local/share`."""
    home = os.environ.get("XDG_DATA_HOME")
    return (Path(home) if home else Path.home() / ".local" / "share") / "giornata"


OLD_NAMES = {
    "upload_url_s": "upload_url_ttl_s",
    "garbage_after_s": "orphan_ttl_s",
    "waiting_claims_per_key": "max_pending_claims_per_key",
    "reallocations_share": "max_reallocated_share_per_hour",
    "join_for_s": "batch_join_window_s",
    "grace_s": "shutdown_grace_s",
    "stall_s": "stall_timeout_s",
}
"""Earlier names of settings, which files, variables and arguments may still use. The new name wins over the old."""


class Settings(BaseSettings):
    """Every setting there is. `docs/reference/settings.md` lists them, and a test compares the two."""

    model_config = SettingsConfigDict(env_prefix="GIORNATA_", frozen=True, extra="forbid")

    # everybody
    url: str | None = Field(
        None,
        description="URL of the server that commands and nodes talk to. Default: the server that runs on the data "
        "directory.",
    )
    api_key: str | None = Field(
        None, description="API key of your commands. Default: the key of the installation on this machine."
    )
    data: Path = Field(
        default_factory=default_data_directory,
        description="Data directory of an installation: its database, blobs, logs and keys. "
        "Default: giornata in $XDG_DATA_HOME, or in ~/.local/share.",
    )

    # server
    host: str = Field(
        "127.0.0.1",
        description="Address that the server listens on. 127.0.0.1 takes connections from this machine only, 0.0.0.0 "
        "from all networks.",
    )
    port: int = Field(8470, ge=0, le=65535, description="TCP port that the server listens on. 0 takes a free port.")
    public_url: str | None = Field(
        None,
        description="URL by which nodes and users reach the server, such as that of a proxy. Default: made of host "
        "and port.",
    )
    database: str | None = Field(
        None,
        description="Database of the server: sqlite:///FILE or postgresql://USER@HOST/NAME. Default: SQLite in the "
        "data directory.",
    )
    blobs: str | None = Field(
        None,
        description="Storage of the server for files: file:///DIR or s3://BUCKET/PREFIX?endpoint=…&region=…. "
        "Default: a folder in the data directory.",
    )
    s3_access_key_id: str | None = Field(
        None, description="Access key id for S3. Default: the credentials that boto3 finds."
    )
    s3_secret_access_key: str | None = Field(
        None, description="Secret access key for S3. Default: the credentials that boto3 finds."
    )
    secrets_key: str | None = Field(
        None,
        description="Fernet key that encrypts the server's signing key and the projects' secrets in the database. "
        "All servers of a database need the same key. Default: with SQLite, the server makes a key in "
        "the data directory; PostgreSQL needs the setting.",
    )
    admin_key: str | None = Field(
        None,
        description="Admin key of the operator's project, such as one from a Kubernetes Secret. The server installs "
        "the key at its start and revokes the key that this setting named before. Default: the first start draws a "
        "key and writes it to admin.key in the data directory.",
    )
    admin_key_file: Path | None = Field(
        None,
        description="File with the admin key, in place of admin_key. The server reads the file at its start.",
    )
    dashboard: bool = Field(
        True, description="Serve the dashboard, the pages for people, below /dashboard. false: serve the API alone."
    )
    cors_origins: tuple[str, ...] = Field(
        (),
        description="Web origins whose pages may call the API from a browser, such as https://app.example.org. "
        "Default: none.",
    )
    trusted_proxies: tuple[IPvAnyNetwork, ...] = Field(
        (),
        description="Addresses and networks of proxies in front of the server. From these, and from no others, the "
        "server believes X-Forwarded-For and X-Forwarded-Proto. Default: none.",
    )
    lease_s: float = Field(
        90.0,
        ge=1,
        le=3600,
        description="Lease duration in seconds. A node that sends no heartbeat for this long loses its job, which "
        "is requeued.",
    )
    max_at_risk_s: float = Field(
        60.0,
        ge=1,
        description="Maximum seconds of work between two checkpoints, for jobs with checkpointing_steps auto. A node "
        "that dies loses about so much work at most. Fewer seconds mean more checkpoints.",
    )
    model_hosts: tuple[str, ...] = Field(
        (),
        description="Hosts of your own network, as HOST:PORT, from which the server may fetch model files of users. "
        "Plain HTTP is allowed for them. Default: public hosts only, by HTTPS.",
    )
    webhook_networks: tuple[IPv4Network | IPv6Network, ...] = Field(
        (),
        description="Networks of your own that webhooks may reach, such as 10.1.0.0/16, also by plain HTTP. "
        "Default: public addresses only, by HTTPS.",
    )
    smtp_url: str | None = Field(
        None,
        description="Mail server for webhooks of the format mail: smtps://USER:PASSWORD@HOST, or "
        "smtp://USER:PASSWORD@HOST, which must offer STARTTLS. Default: the server sends no mail.",
    )
    mail_from: str | None = Field(
        None, description="Sender of mails, such as giornata@example.org. Required with smtp_url."
    )
    oidc_issuer: str | None = Field(
        None,
        description="URL of the OpenID provider at which people may sign in, exactly as its metadata give it. "
        "Default: people sign in with passwords only.",
    )
    oidc_client_id: str | None = Field(
        None, description="Client id of this server at the OpenID provider. Required with oidc_issuer."
    )
    oidc_client_secret: str | None = Field(
        None,
        description="Client secret of this server at the OpenID provider. Default: a public client, with PKCE alone.",
    )
    oidc_client_secret_file: Path | None = Field(
        None,
        description="File with the client secret, in place of oidc_client_secret. The server reads the file at its "
        "start.",
    )
    oidc_scopes: tuple[str, ...] = Field(
        ("openid", "email", "profile"), description="Scopes that the server asks the OpenID provider for."
    )
    oidc_email_domains: tuple[str, ...] = Field(
        (),
        description="Domains of the mail addresses that may sign in at the OpenID provider. Default: all. A domain "
        "does not include its subdomains.",
    )
    oidc_unverified_email: bool = Field(
        False,
        description="true: accept mail addresses that the OpenID provider does not mark as verified, for providers "
        "that never do so. false: refuse these addresses.",
    )
    oidc_name: str = Field(
        "your organization",
        min_length=1,
        max_length=64,
        description="Name of the OpenID provider, as the sign-in page shows it.",
    )
    oidc_networks: tuple[IPv4Network | IPv6Network, ...] = Field(
        (),
        description="Networks of your own in which the OpenID provider is, such as 10.1.0.0/16, also by plain HTTP. "
        "Default: public addresses only, by HTTPS.",
    )
    min_pictures: int = Field(1, ge=1, description="Minimum number of pictures in a dataset.")
    max_pictures: int = Field(
        1000,
        ge=1,
        le=MAX_DATASET_ITEMS,
        description="Maximum number of pictures in a dataset, for projects without a limit of their own (`giornata "
        "project limits`). A run without a server (--standalone) has no such limit.",
    )
    upload_url_ttl_s: float = Field(
        900.0, ge=1, le=604_800, description="Seconds for which a signed URL for an upload is valid."
    )
    orphan_ttl_s: float = Field(
        86_400.0, ge=0, description="Seconds after which the server deletes uploads that were never committed."
    )
    streams_per_key: int = Field(
        1000, ge=1, description="Maximum number of event streams that one key may have open on one server."
    )
    max_pending_claims_per_key: int = Field(
        10_000, ge=1, description="Maximum number of claims of one node key that may wait on one server."
    )
    max_connections_per_project: int = Field(
        2000,
        ge=1,
        description="Maximum number of streams, waiting requests and transfers that one project may have open on "
        "one server. The operator's own project has no maximum.",
    )
    max_connections: int = Field(
        20_000,
        ge=16,
        description="Maximum number of connections of one server. A further connection gets 503. The server needs as "
        "many open files (`ulimit -n`), and 512 more.",
    )
    max_node_price_usd_per_hour: float = Field(
        100.0,
        ge=0,
        le=100_000,
        description="Maximum price of a node in US dollars per hour, for node keys without a maximum of their own. "
        "A node that reports a higher price gets no jobs. In a fleet with its own price the reported "
        "price is ignored.",
    )
    new_machines: Literal["trusted", "probation"] = Field(
        "trusted",
        description="First state of a machine without a history. trusted: it gets jobs at once. probation: it gets a "
        "short trial job (canary) first.",
    )
    audit_share: float = Field(
        0.01,
        ge=0,
        le=1,
        description="Share of training stretches that other machines run again, in fleets of strangers' machines: "
        "0.01 is one in a hundred. 0 turns these audits off. A fleet's own audit_share comes first.",
    )
    quarantine_failures: int = Field(
        3, ge=1, le=100, description="Number of failures within quarantine_within_s that quarantine a machine."
    )
    quarantine_within_s: float = Field(
        600.0, ge=1, description="Seconds in which failures of a machine are counted for quarantine_failures."
    )
    quarantine_s: float = Field(
        900.0,
        ge=1,
        description="Duration of the first quarantine of a machine, in seconds. Each further quarantine in a row "
        "lasts twice as long.",
    )
    retry_pause_s: float = Field(
        10.0,
        ge=0.1,
        description="Seconds before a job returns to a machine that failed it, if no other machine can take the "
        "job. Each further attempt without progress triples the pause.",
    )
    longest_retry_pause_s: float = Field(
        900.0,
        ge=0.1,
        description="Maximum seconds of the pause that starts at retry_pause_s. A job that needs more GPU memory "
        "than every connected node has fails after this time.",
    )
    max_reallocated_share_per_hour: float = Field(
        0.1,
        gt=0,
        le=1,
        description="Maximum share of a fleet's nodes that are replaced for bad health within an hour: 0.1 is a "
        "tenth.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Minimum level of the messages in the logs."
    )
    log_format: Literal["text", "json"] = Field(
        "text",
        description="Format of the logs of servers and nodes. text: one readable line per message. json: one "
        "object per line with ts, level, logger, message and, if known, request_id, job, attempt and "
        "node.",
    )

    # fleet and node
    nodes: int = Field(
        1,
        ge=0,
        le=256,
        description="Number of nodes that `up` runs on this machine. With max_nodes, the minimum number. With "
        "max_nodes or fleets, the default is 0.",
    )
    max_nodes: int | None = Field(
        None,
        ge=1,
        le=256,
        description="Maximum number of nodes that `up` runs on this machine: it starts and stops nodes as the "
        "queue needs them. Default: the same as nodes.",
    )
    fleets: dict[FleetName, FleetTable] = Field(
        default_factory=dict,
        description="Fleets that the server manages: a table [fleets.NAME] for each. Default: none.",
    )
    node_key: str | None = Field(
        None,
        description="API key of scope node, with which this node connects. Default: none, except on SaladCloud, "
        "where the provider signs tokens.",
    )
    machine_id: str | None = Field(
        None,
        description="Identifier of the node's hardware. Bans apply to it. Default: an identifier that is drawn "
        "once and kept in the data directory.",
    )
    node_name: str | None = Field(None, description="Name of the node in tables and logs. Default: the machine's id.")
    fleet: str = Field("static", description="Name of the fleet that this node joins.")
    instance_id: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9._:/-]{1,128}$",
        description="The provider's id of the container or process that this node runs in. Default: detected on "
        "SaladCloud, else none.",
    )
    provider: Literal["auto", "none", "salad"] = Field(
        "auto",
        description="Provider of the machine that this node runs on. auto: detect SaladCloud from the environment. "
        "none: do not look. salad: refuse to start elsewhere.",
    )
    price_usd_per_hour: float = Field(
        0.0,
        ge=0,
        le=100_000,
        description="Price of this node in US dollars per hour, including a Ray cluster behind it. Jobs on the "
        "node are charged this price.",
    )
    kinds: tuple[str, ...] = Field(
        NODE_KINDS,
        description="Kinds of job that this node takes: train, generate, preprocess (models of annotators), "
        "pretrain, or your own. Nodes of `giornata up` take `preprocess` by default, too.",
    )
    workloads: dict[str, str] = Field(
        default_factory=dict,
        description="Your own kinds of job: x-NAME = command line of a program that speaks the pipe protocol. "
        "Default: none.",
    )
    work_directory: Path | None = Field(
        None, description="Scratch directory of the node. Default: a folder in the data directory."
    )
    cache_bytes: int = Field(
        20 * 2**30,
        ge=0,
        description="Maximum size of the node's cache of input files, in bytes. The least recently used files go "
        "first.",
    )
    model_store_bytes: int = Field(
        100 * 2**30,
        ge=0,
        description="Maximum size, in bytes, of registered model files on the node's disk, for drawing and training. "
        "The least recently used go first.",
    )
    host_model_bytes: int = Field(
        0,
        ge=0,
        description="Maximum size, in bytes, of base models that the engine keeps in RAM for a quick change of "
        "model. A base of SDXL takes about 7 GB. 0: the engine keeps none.",
    )
    model_cache_bytes: int = Field(
        100 * 2**30,
        ge=0,
        description="Maximum size of the base models that the node has downloaded from the hub, in bytes. The least "
        "recently used go first.",
    )
    compile: Literal["auto", "on", "off"] = Field(
        "auto",
        description="Draw pictures with compiled kernels (torch.compile). auto: on tested kinds of GPUs, for passes "
        "that are needed often. on: always. off: never. For training, the spec has its own setting.",
    )
    shared_compile_cache: bool = Field(
        False,
        description="Download compiled kernels from other nodes and share this node's. Needs compile_cache_key.",
    )
    compile_cache_key: str | None = Field(
        None,
        description="Key that signs kernels shared between nodes, which run as code. Give it only to nodes that you "
        "trust.",
    )
    threads: int = Field(
        1,
        ge=1,
        le=256,
        description="Number of CPU threads of the engine. Another number may change the bits of a result, so the "
        "result's fingerprint records it.",
    )
    device: str = Field("auto", description="Device of the engine: auto, cpu or cuda. auto: the GPU if there is one.")
    places: int = Field(
        1,
        ge=1,
        le=64,
        description="Number of jobs that the node may train in one batch, as far as its GPU memory allows. 1: "
        "one job at a time.",
    )
    batch_join_window_s: float = Field(
        3600.0,
        ge=0,
        description="Seconds after the start of a batch during which further jobs or pictures may join it. After "
        "that the batch runs until it is empty.",
    )
    max_pictures_per_lease: int = Field(
        16,
        ge=1,
        le=MOST_PICTURES,
        description="Maximum number of pictures that the node takes in one lease. The node asks for more when half "
        "of them are drawn.",
    )
    shutdown_grace_s: float = Field(
        30.0,
        ge=0,
        description="Seconds that jobs have for a last checkpoint after SIGTERM. After that the node stops the "
        "engine.",
    )
    stall_timeout_s: float = Field(
        600.0,
        ge=1,
        description="Maximum seconds without a training step. After that the node stops the engine, and the job is "
        "tried again.",
    )

    # standalone
    webhook_secret: str | None = Field(
        None,
        description="Secret that signs the requests of `train --standalone --webhook URL`: whsec_BASE64, or any "
        "text. Required with --webhook.",
    )

    @model_validator(mode="before")
    @classmethod
    def _with_new_names(cls, given: dict[str, Any]) -> dict[str, Any]:
        current = {name: value for name, value in given.items() if name not in OLD_NAMES}
        return {OLD_NAMES[name]: value for name, value in given.items() if name in OLD_NAMES} | current

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
        earlier = InitSettingsSource(settings_cls, init_kwargs=_old_variables())
        return init_settings, env_settings, earlier, file


def _old_variables() -> dict[str, Any]:
    """The settings that the environment gives under their earlier names."""
    variables = {name: f"GIORNATA_{old.upper()}" for old, name in OLD_NAMES.items()}
    return {name: os.environ[variable] for name, variable in variables.items() if variable in os.environ}


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


def storage_url(place: str) -> str:
    """A URL as it is, a folder as a `file:` URL."""
    return place if "://" in place else Path(place).expanduser().resolve().as_uri()
