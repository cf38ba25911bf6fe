"""The HTTP API as one app: its routes, its middleware, and what they share."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from anyio import CapacityLimiter
from fastapi import Depends, FastAPI
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from giornata import __version__
from giornata.api.health import Check, health_routes
from giornata.api.job_routes import (
    end_of_life,
    gallery,
    generations,
    histories,
    jobs,
    models,
    openai_images,
    order_pictures,
    sweeps,
    uploads,
)
from giornata.api.metrics import Metrics, MetricsMiddleware
from giornata.api.node_routes import fleets, node
from giornata.api.node_routes.batching import RequestBatcher
from giornata.api.node_routes.blobs import blob_routes, serves_blobs
from giornata.api.node_routes.fast_routes import FastNodeRoutes
from giornata.api.project_routes import admin, audit_log, people, project_transfer, quotas, webhooks
from giornata.api.replies.followed_jobs import FollowedJobs
from giornata.api.replies.openapi import install_openapi, operation_id
from giornata.api.replies.problems import install_handlers
from giornata.api.requests.body_limits import DATASETS_PATH, ORDER_PATHS, BodyLimits, Head
from giornata.api.requests.connection import BodyPace
from giornata.api.requests.known_query import KnownQuery, only_known_query
from giornata.api.requests.lists import Lists
from giornata.api.requests.open_connections import ConnectionQuota, ProjectConnections
from giornata.api.settings import ApiSettings
from giornata.api.sign_in_routes import device, oidc, sessions, sign_in_pages
from giornata.api.wakeup import Wakeup
from giornata.control.access.install import read_signing_key
from giornata.control.attempts.claiming.claim import claim_each
from giornata.control.attempts.ending.complete import complete_each
from giornata.control.attempts.heartbeat import heartbeat_each
from giornata.control.attempts.record_pictures import record_each
from giornata.control.context import Context
from giornata.control.jobs.submission.submit import JobRequest, submit_each
from giornata.control.loops import LoopStatus
from giornata.control.monitoring import StorageCheck, read_gauges
from giornata.web.request_limits import NAMES

DESCRIPTION = """Fine-tunes SDXL LoRAs on GPUs that may vanish at any moment.

Every error is an `application/problem+json` document with a stable `code`; invalid input lists every fault.
"""
_ROUTERS = (
    uploads.router,
    models.router,
    jobs.router,
    sweeps.router,
    histories.router,
    order_pictures.router,
    generations.router,
    openai_images.router,
    admin.router,
    quotas.router,
    sessions.router,
    oidc.router,
    device.router,
    device.oauth,
    people.router,
    webhooks.router,
    audit_log.router,
    end_of_life.router,
    gallery.router,
    project_transfer.router,
    fleets.router,
    node.router,
    node.attempts,
)
_OF_EVERY_ROUTE: Mapping[str, Any] = {
    "dependencies": [Depends(only_known_query)],
    "generate_unique_id_function": operation_id,
}
_CORS_REQUEST = ["Authorization", "Content-Type", "Idempotency-Key", "Last-Event-ID", "Prefer", "Range", "X-API-Key"]
_CORS_REPLY = ["Content-Range", "ETag", "Location", "Preference-Applied", "Retry-After", "X-Request-Id", *NAMES]


def create_app(
    ctx: Context,
    *,
    settings: ApiSettings | None = None,
    loops_status: Callable[[], Sequence[LoopStatus]] | None = None,
    checks: Mapping[str, Check] | None = None,
    disks: Mapping[str, Path] | None = None,
) -> FastAPI:
    """Return the app over `ctx`, with its routes and middleware.

    `loops_status` is `Loops.status` of the loops that run beside it. `checks` are what `/readyz` asks besides the
    store and the blobs; each raises a GiornataError when it is not well. `disks` are folders whose room `/metrics`
    tells, by their names. `app.state.wakeup.notify()` tells waiting nodes that a job may be there.
    """
    settings = settings or ApiSettings()
    loops_status = loops_status or (lambda: ())
    metrics = Metrics(
        read_gauges=partial(read_gauges, ctx),
        now_ms=ctx.clock.now_ms,
        loops_status=loops_status,
        kept_s=settings.gauges_kept_s,
        durations=ctx.durations,
        disks=disks,
        ended_pictures=ctx.ended_pictures,
    )
    health = health_routes({**_own_checks(ctx), **(checks or {})}, loops_status)
    app = FastAPI(
        title="Giornata",
        version=__version__,
        description=DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        **_OF_EVERY_ROUTE,
        middleware=[
            *_middleware(settings, metrics),
            Middleware(KnownQuery, routers=(*_ROUTERS, health)),
            Middleware(FastNodeRoutes, ctx=ctx, routers=(node.router, node.attempts, jobs.router)),
        ],
    )
    app.state.context, app.state.settings, app.state.metrics, app.state.wakeup = (
        ctx,
        settings,
        metrics,
        Wakeup(threads=settings.waiting_threads),
    )
    app.state.loops_status = loops_status
    app.state.claims = RequestBatcher(
        metrics.claims.around(partial(claim_each, ctx)), key=lambda asked: asked.node_id
    )
    app.state.beats = RequestBatcher(partial(heartbeat_each, ctx), key=lambda beat: beat.attempt_id)
    app.state.completions = RequestBatcher(partial(complete_each, ctx), key=lambda done: done.attempt_id)
    app.state.picture_results = RequestBatcher(partial(record_each, ctx), key=lambda report: report.attempt_id)
    app.state.submissions = RequestBatcher(partial(submit_each, ctx), key=_idempotency)
    app.state.lists = Lists(threads=settings.list_threads)
    app.state.followed_jobs = FollowedJobs(ctx, app.state.wakeup, poll_s=settings.stream_poll_s)
    app.state.streams = ConnectionQuota("streams", most=settings.streams_per_key, setting="streams_per_key")
    app.state.waiting_orders = ConnectionQuota("requests that wait for pictures", most=settings.streams_per_key)
    app.state.waiting_claims = ConnectionQuota(
        "waiting claims", most=settings.waiting_claims_per_key, setting="max_pending_claims_per_key"
    )
    app.state.project_connections = ProjectConnections(most=settings.max_connections_per_project)
    app.state.password_threads = CapacityLimiter(settings.password_threads)
    app.state.provider_threads = CapacityLimiter(settings.provider_threads)
    app.state.sign_ins = ConnectionQuota("sign-ins", most=settings.sign_ins_per_address, whose="this address")
    install_handlers(app)
    app.router.routes.extend(_shared_routes())
    app.include_router(health)
    # Who has a better page for one of these paths puts its route here: no request of the API is matched later for it.
    app.state.before_pages = len(app.router.routes)
    # A provider sends browsers back with parameters of its own: pages are not held to theirs.
    app.include_router(sign_in_pages.router)
    if serves_blobs(ctx.blobs):
        app.include_router(
            blob_routes(ctx.blobs, threads=settings.blob_threads, places=app.state.project_connections)
        )
    install_openapi(app, settings)
    return app


@cache
def _shared_routes() -> Sequence[BaseRoute]:
    """Return the routes of `_ROUTERS`, which all apps of a process share: building them takes long.

    What differs between apps is found by `request.app`.
    """
    builder = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, **_OF_EVERY_ROUTE)
    for router in _ROUTERS:
        builder.include_router(router)
    return tuple(builder.router.routes)


def _idempotency(asked: JobRequest) -> Hashable:
    """Return the key of requests that are not answered together: the second finds what the first has made."""
    key = asked.idempotency_key
    return id(asked) if key is None else (asked.caller.project_id, key)


def _middleware(settings: ApiSettings, metrics: Metrics) -> list[Middleware]:
    cross_origin = Middleware(
        CORSMiddleware,
        allow_origins=list(settings.allowed_origins),
        allow_methods=["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"],
        allow_headers=_CORS_REQUEST,
        expose_headers=_CORS_REPLY,
        max_age=3600,
    )
    behind_proxy = Middleware(ProxyHeadersMiddleware, trusted_hosts=list(settings.trusted_proxies))
    return [
        *([behind_proxy] if settings.trusted_proxies else []),
        *([cross_origin] if settings.allowed_origins else []),
        Middleware(MetricsMiddleware, metrics=metrics),
        Middleware(Head),
        Middleware(
            BodyLimits,
            max_json_bytes=settings.max_json_bytes,
            max_bytes_by_path={DATASETS_PATH: settings.max_dataset_bytes}
            | dict.fromkeys(ORDER_PATHS, settings.max_order_bytes),
            pace=BodyPace(grace_s=settings.body_grace_s, bytes_per_s=settings.body_bytes_per_s),
        ),
    ]


def _own_checks(ctx: Context) -> dict[str, Check]:
    return {"store": partial(_ask_store, ctx), "blobs": StorageCheck(ctx)}


def _ask_store(ctx: Context) -> None:
    with ctx.store.read() as tx:
        read_signing_key(tx, ctx)
