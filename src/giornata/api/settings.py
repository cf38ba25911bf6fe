"""The settings of the HTTP layer."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiSettings:
    """The settings of the HTTP layer; defaults suit a server behind a reverse proxy.

    `base_url` is where clients reach the server; it is only shown in the OpenAPI document. What `trusted_proxies`
    (addresses and networks) say of a client's address and scheme is believed. `claim_poll_s` is how
    often a waiting claim asks again when nothing woke it, `stream_poll_s` how often one look is made for all event
    streams. Both look into the store with `waiting_threads` threads of their own, so that however many wait,
    heartbeats do not; bodies for signed URLs are received with `blob_threads`. Pages of
    lists are read and written as JSON with `list_threads`. A key may have `streams_per_key` event streams and
    `waiting_claims_per_key` claims that wait open on one server. A project has at most
    `max_connections_per_project` of these and of transfers of bytes together, and the server `max_connections` of
    all kinds. A body has at most `max_json_bytes`, the list of a dataset's pictures `max_dataset_bytes`, and an
    order of pictures `max_order_bytes`. A request in OpenAI's shape waits `images_wait_s` for its pictures.
    Passwords are hashed with `password_threads`, and an address may have `sign_ins_per_address` sign-ins open; an
    OpenID provider is asked with `provider_threads`. A body has `body_grace_s` to arrive, and a second more for
    each `body_bytes_per_s` of it that has come: whoever is slower is cut off, and may not keep a thread for ever.
    """

    base_url: str | None = None
    allowed_origins: tuple[str, ...] = ()
    trusted_proxies: tuple[str, ...] = ()
    max_json_bytes: int = 2**20
    max_dataset_bytes: int = 16 * 2**20
    max_order_bytes: int = 4 * 2**20
    images_wait_s: float = 300.0
    body_grace_s: float = 30.0
    body_bytes_per_s: int = 4096
    claim_poll_s: float = 0.5
    stream_poll_s: float = 0.5
    keep_alive_s: float = 10.0
    streams_per_key: int = 1000
    waiting_claims_per_key: int = 10_000
    max_connections_per_project: int = 2000
    max_connections: int = 20_000
    waiting_threads: int = 8
    list_threads: int = 4
    blob_threads: int = 16
    gauges_kept_s: float = 5.0
    password_threads: int = 2
    provider_threads: int = 4
    sign_ins_per_address: int = 8
