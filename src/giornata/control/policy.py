"""The numbers of the control plane that an operator may change."""

from dataclasses import dataclass, field

from giornata.domain.fleets.replacement import ReapPolicy
from giornata.domain.generation.model_routing import RoutingPolicy
from giornata.domain.jobs.audits import AuditPolicy
from giornata.domain.jobs.backoff import BackoffPolicy
from giornata.domain.machines.health import HealthPolicy
from giornata.domain.machines.stragglers import StragglerPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The settings of the control plane's behavior. Defaults suit rented consumer GPUs."""

    lease_s: float = 90.0
    max_at_risk_s: float = 60.0
    max_node_price_micro_usd_per_hour: int = 100_000_000  # that a node may name, unless its key says otherwise
    stop_grace_s: float = 300.0  # for a checkpoint, after a node heard that its job is wanted back
    upload_url_s: float = 900.0
    download_url_s: float = 3600.0
    node_gone_after_s: float = 120.0
    max_crashed_machines: int = 3  # crashes without progress between them, on as many machines or on fewer
    max_fruitless: int = 10
    min_pictures: int = 1
    max_pictures: int = 1000  # unless the project has a limit of its own
    max_picture_bytes: int = 50 * 2**20
    max_upload_bytes: int = 8 * 2**30
    min_picture_side_px: int = 64
    max_picture_pixels: int = 64_000_000
    doubted_again_s: float = 600.0  # bytes that were doubted and found good are not read again for so long
    garbage_after_s: float = 24 * 3600.0
    idempotency_kept_s: float = 24 * 3600.0
    unused_models_kept_s: float = 30 * 24 * 3600.0  # those that orders named by a reference, and nobody pinned
    max_log_lines_per_job: int = 100_000
    backoff: BackoffPolicy = field(default_factory=BackoffPolicy)
    max_spec_bytes: int = 64 * 2**10  # as compact JSON
    max_order_bytes: int = 4 * 2**20  # of an order of pictures, which may have thousands of prompts
    max_page_bytes: int = 2**20  # a page of a list ends with the row that reaches it
    max_searched_jobs: int = 2000  # whose names one page of a search looks at
    max_notices_per_job: int = 1000
    max_notice_bytes: int = 16 * 2**10  # of what one says, as compact JSON
    max_metric_names_per_job: int = 256
    max_metric_name_length: int = 128
    max_metric_steps_per_job: int = 100_000  # of those below this number, and as many again above
    max_webhooks_per_project: int = 100
    max_runs_per_webhook: int = 4  # chains of deliveries that are sent to one webhook at a time
    webhook_deliveries_kept_s: float = 30 * 24 * 3600.0  # after they have ended
    email_domains: tuple[str, ...] = ()  # of people who sign in at an OpenID provider; none: all
    unverified_email: bool = False  # takes addresses that the provider does not call verified
    health: HealthPolicy = field(default_factory=HealthPolicy)
    routing: RoutingPolicy = field(default_factory=RoutingPolicy)
    routing_age_s: float = 1.0  # of what a server remembers of the queue and of the nodes' models
    stragglers: StragglerPolicy = field(default_factory=StragglerPolicy)
    reap: ReapPolicy = field(default_factory=ReapPolicy)
    audits: AuditPolicy = field(default_factory=AuditPolicy)
