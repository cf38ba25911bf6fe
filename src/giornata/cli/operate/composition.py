"""Puts a control plane together from settings."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import httpx
from cryptography.fernet import Fernet, InvalidToken

from giornata.api.settings import ApiSettings
from giornata.blobs import open_blobs
from giornata.blobs.opening import folder_of
from giornata.cli.operate.open_files import connections_of, open_files
from giornata.cli.operate.passwords import Argon2Passwords
from giornata.cli.settings import Settings, admin_key_of, oidc_client_secret_of, s3_credentials_of
from giornata.cli.settings.connection import SERVER_FILE
from giornata.cli.settings.private_files import BLOBS, DATA, private_folder, write_private
from giornata.cli.system import RandomNames, SandboxedPictures, SystemClock
from giornata.client.trust import trusted
from giornata.control.access.install import install, put_admin_key, renew_signing_key, seal_signing_key, signing_key
from giornata.control.context import Context, Foundations
from giornata.control.policy import Policy
from giornata.control.ports.identity_provider import IdentityProvider, NoIdentityProvider
from giornata.control.ports.sealing import Sealer
from giornata.domain.billing.money import MICRO_USD
from giornata.domain.errors import Fault, InvalidInput, Unavailable
from giornata.domain.fleets.replacement import ReapPolicy
from giornata.domain.jobs.audits import AuditPolicy
from giornata.domain.jobs.backoff import BackoffPolicy
from giornata.domain.machines.health import HealthPolicy
from giornata.model_sources.web_file import WebReader
from giornata.model_sources.web_sources import WebSources
from giornata.outbound.background_notifier import WEBHOOK_HINT, BackgroundNotifier
from giornata.outbound.mail import mail_sender
from giornata.outbound.oidc_provider import OIDC_HINT, OidcProvider, oidc_client
from giornata.outbound.public_addresses import AddressRule
from giornata.pictures.inspection import PictureLimits
from giornata.store.database.database import Database, open_store
from giornata.store.database.migrate import migrate, serves

NODE_KEY_FILE = "node.key"
POSTGRESQL_PORT = 5432
SECRETS_KEY_FILE = "secrets.key"
DRIVERS_OF_STRANGERS = frozenset({"salad"})
"""Drivers of fleets whose machines belong to many people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenControlPlane:
    """A control plane over its storage.

    `first_admin_key` is given once, at the very first start. `check_schema` raises Unavailable when another server
    has brought the database to a schema that is not this one's. `is_shared`: other servers may use the database too.
    """

    context: Context
    first_admin_key: str | None
    check_schema: Callable[[], None]
    is_shared: bool


def policy_of(settings: Settings) -> Policy:
    """Build the control plane's policy from the operator's settings."""
    return Policy(
        lease_s=settings.lease_s,
        max_at_risk_s=settings.max_at_risk_s,
        min_pictures=settings.min_pictures,
        max_pictures=settings.max_pictures,
        upload_url_s=settings.upload_url_ttl_s,
        garbage_after_s=settings.orphan_ttl_s,
        backoff=BackoffPolicy(first_s=settings.retry_pause_s, longest_s=settings.longest_retry_pause_s),
        # What this server says that its own nodes cost is no lie of theirs.
        max_node_price_micro_usd_per_hour=round(
            max(settings.max_node_price_usd_per_hour, settings.price_usd_per_hour) * MICRO_USD
        ),
        health=HealthPolicy(
            burst_failures=settings.quarantine_failures,
            burst_s=settings.quarantine_within_s,
            cool_down_s=settings.quarantine_s,
            new_on_probation=settings.new_machines == "probation",
        ),
        reap=ReapPolicy(hourly_share=settings.max_reallocated_share_per_hour),
        audits=_audit_policy(settings),
        email_domains=settings.oidc_email_domains,
        unverified_email=settings.oidc_unverified_email,
    )


def _audit_policy(settings: Settings) -> AuditPolicy:
    """Return the shares of training stretches that are audited. Machines of no fleet are the operator's own."""
    strangers = frozenset(name for name, fleet in settings.fleets.items() if fleet.driver in DRIVERS_OF_STRANGERS)
    usual = {name: settings.audit_share if name in strangers else 0.0 for name in settings.fleets}
    chosen = {name: fleet.audit_share for name, fleet in settings.fleets.items() if fleet.audit_share is not None}
    return AuditPolicy(share_by_fleet=usual | chosen, rented_fleets=strangers)


def api_settings_of(settings: Settings) -> ApiSettings:
    """Build the settings of the HTTP layer."""
    return ApiSettings(
        base_url=settings.public_url,
        allowed_origins=settings.cors_origins,
        trusted_proxies=tuple(map(str, settings.trusted_proxies)),
        streams_per_key=settings.streams_per_key,
        waiting_claims_per_key=settings.max_pending_claims_per_key,
        max_connections_per_project=settings.max_connections_per_project,
        max_connections=connections_of(settings.max_connections, open_files()),
    )


@contextmanager
def open_control_plane(
    settings: Settings, *, base_url: Callable[[], str], new_signing_key: bool = False
) -> Iterator[OpenControlPlane]:
    """Open (and migrate, and at the first start install) the storage that `settings` name.

    `base_url` tells where this server is reached; only signed URLs of the filesystem need it. With `new_signing_key`
    leases and signed URLs from before are refused. Raises Unavailable when another server has the database, and
    InvalidInput for settings that cannot be used and for folders that other users may read.
    """
    data = private_folder(settings.data, named="data", holds=DATA)
    database = settings.database or f"sqlite:///{data / 'giornata.db'}"
    blobs_url = settings.blobs or f"file://{(data / 'blobs').resolve()}"
    sealer, admin_key = _sealer(settings, database), admin_key_of(settings)
    if (folder := folder_of(blobs_url)) is not None:
        private_folder(folder, named="blobs", holds=BLOBS)
    with _explaining(database):
        migrate(database)
    notifier = _notifier(settings)
    store = open_store(database)
    http = httpx.Client(verify=trusted())
    # A proxy of the environment would look up names itself, so that the address that is judged is not the one asked.
    direct = httpx.Client(verify=trusted(), trust_env=False)
    try:
        clock, names, pictures = SystemClock(), RandomNames(), _pictures(settings)
        # The signing key lies in the database, and signed URLs need it: installing comes before blobs are opened.
        foundations = Foundations(store=store, clock=clock, names=names, sealer=sealer)
        first_admin_key = _installed(foundations, admin_key, new_signing_key=new_signing_key)
        blobs = open_blobs(
            blobs_url,
            signing_key=signing_key(foundations),
            base_url=base_url,
            clock=clock,
            s3_credentials=s3_credentials_of(settings),
        )
        context = Context(
            store=store,
            blobs=blobs,
            clock=clock,
            names=names,
            pictures=pictures,
            policy=policy_of(settings),
            sealer=sealer,
            passwords=Argon2Passwords(),
            model_sources=WebSources(
                WebReader(http=http, rule=AddressRule(own_hosts=frozenset(settings.model_hosts)))
            ),
            notifier=notifier,
            identity_provider=_identity_provider(settings, direct, clock),
        )
        check_schema = partial(_check_schema, store)
        yield OpenControlPlane(
            context=context,
            first_admin_key=first_admin_key,
            check_schema=check_schema,
            is_shared=store.dialect_name != "sqlite",
        )
    finally:
        notifier.close()
        http.close()
        direct.close()
        store.close()


@contextmanager
def _explaining(database: str) -> Iterator[None]:
    """Say of a database server that does not answer which one it is, and what to do."""
    try:
        yield
    except Unavailable as error:
        if error.hint or not database.startswith("postgres"):
            raise
        url = urlsplit(database)
        where = f"{url.hostname or 'localhost'}:{url.port or POSTGRESQL_PORT}{url.path}"
        hint = "Start PostgreSQL, or check host, port, name and password in --database or GIORNATA_DATABASE."
        why = " ".join(str(error.__cause__ or error).splitlines()[0].split())
        raise Unavailable(f"PostgreSQL at {where} cannot be used: {why}", hint=hint) from error


def _installed(foundations: Foundations, admin_key: str | None, *, new_signing_key: bool) -> str | None:
    """Install at the first start, seal what an earlier version left in the clear, and take the operator's key."""
    first_admin_key = install(foundations, admin_key=admin_key)
    if new_signing_key:
        renew_signing_key(foundations)
    seal_signing_key(foundations)
    if admin_key is not None:
        put_admin_key(foundations, admin_key)
    return first_admin_key


def _sealer(settings: Settings, database: str) -> Sealer:
    """Return the sealer with the key of the setting; an installation on SQLite makes itself a key.

    Raises InvalidInput for another installation without the setting.
    """
    file = settings.data / SECRETS_KEY_FILE
    key = settings.secrets_key or key_in(file)
    if key is None and not database.startswith("sqlite"):
        message = "is not set: it encrypts the key that signs leases and URLs, and projects' secrets, in the database"
        hint = f"give every server of this database the same GIORNATA_SECRETS_KEY; {SECRETS_KEY_HINT}"
        raise InvalidInput([Fault(where="secrets_key", message=message, hint=hint)])
    if key is None:
        key = new_key()
        write_private(file, key + "\n")
    return FernetSealer(key)


def _notifier(settings: Settings) -> BackgroundNotifier:
    """Return the sender of webhooks and mails. Raises InvalidInput for settings of mail that cannot be used."""
    rule = AddressRule(own_networks=settings.webhook_networks, hint=WEBHOOK_HINT)
    mail = None if settings.smtp_url is None else mail_sender(settings.smtp_url, settings.mail_from or "", trusted())
    # A proxy of the environment would look up names itself, so that the address that is judged is not the one asked.
    connect = partial(httpx.AsyncHTTPTransport, verify=trusted(), trust_env=False)
    return BackgroundNotifier(rule, mail, connect=connect)


def _identity_provider(settings: Settings, http: httpx.Client, clock: SystemClock) -> IdentityProvider:
    """Return the OpenID provider of the settings, if they name one. Raises InvalidInput; asks nobody."""
    if settings.oidc_issuer is None and settings.oidc_client_id is None:
        return NoIdentityProvider()
    secret = oidc_client_secret_of(settings)
    client = oidc_client(settings.oidc_issuer, settings.oidc_client_id, secret, settings.oidc_scopes)
    rule = AddressRule(own_networks=settings.oidc_networks, hint=OIDC_HINT)
    return OidcProvider(client, name=settings.oidc_name, http=http, rule=rule, now_ms=clock.now_ms)


def _check_schema(store: Database) -> None:
    with store.read() as tx:
        if not serves(tx.connection):
            raise Unavailable("the database's schema is not the one that this version was made for")


def _pictures(settings: Settings) -> SandboxedPictures:
    policy = policy_of(settings)
    limits = PictureLimits(
        max_pixels=policy.max_picture_pixels,
        min_side_px=policy.min_picture_side_px,
        max_file_bytes=policy.max_picture_bytes,
    )
    return SandboxedPictures(limits=limits)


def write_server_file(data: Path, url: str) -> None:
    """Say where the server on this data directory listens, so that other commands find it."""
    write_private(data / SERVER_FILE, json.dumps({"url": url, "pid": os.getpid()}) + "\n")


SECRETS_KEY_HINT = (
    "make one with: python -c 'from cryptography.fernet import Fernet; print(Fernet.generate_key().decode())'"
)


class FernetSealer:
    """Implements `giornata.control.ports.sealing.Sealer`. Raises InvalidInput for what is not a key."""

    seals = True

    def __init__(self, key: str) -> None:
        try:
            self._fernet = Fernet(key)
        except ValueError:
            message = "is not 32 bytes in URL-safe base64"
            raise InvalidInput([Fault(where="secrets_key", message=message, hint=SECRETS_KEY_HINT)]) from None

    def seal(self, text: str) -> str:
        """Encrypt the text. See `Sealer`."""
        return self._fernet.encrypt(text.encode()).decode()

    def unseal(self, sealed: str) -> str:
        """Decrypt the text. Raises Unavailable for text that another key sealed."""
        try:
            return self._fernet.decrypt(sealed).decode()
        except InvalidToken:
            raise Unavailable("a secret was sealed with another key than the setting secrets_key") from None


def key_in(file: Path) -> str | None:
    """The key that an embedded installation has made for itself, if it has."""
    return file.read_text().strip() if file.is_file() else None


def new_key() -> str:
    """Generate a key for sealing secrets, as text."""
    return Fernet.generate_key().decode()
