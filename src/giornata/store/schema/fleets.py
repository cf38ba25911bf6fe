"""Tables for fleets, for what their providers run, and for what is held against machines."""

import sqlalchemy as sa
from sqlalchemy import BigInteger, Boolean, Column, Float, Index, Integer, String, Table, Text

from giornata.store.schema.columns import RowId, at, metadata

fleets = Table(
    "fleets",
    metadata,
    Column("name", String(128), primary_key=True),
    Column("driver", String(32), nullable=False),
    Column("desired", Integer, nullable=False, server_default="0"),
    Column("plan", sa.JSON, nullable=False, server_default="{}"),  # the latest, with its reasons
    Column("trouble", Text, nullable=False, server_default=""),  # what the provider last refused
    Column("told", Integer),  # what the provider has surely been asked for; None: that is not known
    Column("price_micro_usd_per_hour", BigInteger),  # of one more node, as last heard
    at("needed_at_ms", nullable=True),  # when there was last work for it
    at("awaited_at_ms", nullable=True),  # when jobs last waited for every node that had not started
    at("changed_at_ms", nullable=True),  # when the number of nodes that it asks for last changed
    at("seen_at_ms"),  # 0: it was never listed
    Column("unlisted", Text, nullable=False, server_default=""),  # why it could not be listed the last time
    Column("shortage", Text, nullable=False, server_default=""),  # why fewer nodes run than are wanted
    Column("outdated", sa.JSON, nullable=False, server_default="[]"),  # settings that its instances do not have yet
    at("examined_at_ms", nullable=True),  # when the provider was last asked about both
    at("roll_since_ms", nullable=True),  # since when its instances are renewed, because an operator wants it
    at("told_at_ms", nullable=True),  # when the provider heard of `told`
    at("quiet_until_ms", nullable=True),  # the provider wants to be asked nothing before
    at("paused_at_ms", nullable=True),  # since when an operator wants no nodes of it
    Column("limits", sa.JSON, nullable=False, server_default="{}"),  # an operator's, in place of the settings'
)

instances = Table(
    "instances",
    metadata,
    Column("fleet", String(128), primary_key=True),
    Column("id", String(128), primary_key=True),
    Column("machine_id", String(128)),
    Column("name", String(128), nullable=False),
    Column("state", String(16), nullable=False),
    Column("price_micro_usd_per_hour", BigInteger, nullable=False, server_default="0"),
    at("first_listed_at_ms"),
    at("last_listed_at_ms"),
    at("running_at_ms", nullable=True),  # since when the provider bills it
    at("leaving_at_ms", nullable=True),  # we told it to go
    Column("leaving_reason", Text, nullable=False, server_default=""),
    at("ended_at_ms", nullable=True),  # asked of the provider
    at("gone_at_ms", nullable=True),  # confirmed: listed no more
    Column("trouble", Text, nullable=False, server_default=""),  # in the provider's words
    at("drained_at_ms", nullable=True),  # the provider knows that it goes first
    Column("outdated", Boolean, nullable=False, server_default=sa.false()),  # not as the settings say
    Column("renewing", Boolean, nullable=False, server_default=sa.false()),  # it leaves for that
    Column("restarts", Integer, nullable=False, server_default="0"),  # of its node's process, as last listed
    at("began_at_ms", nullable=True),  # when its node's process was last found to begin
    Column("failed_starts", Integer, nullable=False, server_default="0"),  # in a row, up to now
    Column("offer", String(128), nullable=False, server_default=""),  # what the provider rents: a GPU class, a place
    Index("ix_instances_present", "fleet", "gone_at_ms"),
    Index("ix_instances_machine", "machine_id"),
)

billed_intervals = Table(  # when a provider bills an instance, one row for each interval at one price
    "billed_intervals",
    metadata,
    Column("fleet", String(128), primary_key=True),
    Column("instance_id", String(128), primary_key=True),
    Column("seq", Integer, primary_key=True),
    at("from_ms"),
    at("to_ms", nullable=True),  # None: it goes on
    Column("price_micro_usd_per_hour", BigInteger, nullable=False),  # 0: not known
)

fleet_prices = Table(  # of one more node, one row for each change
    "fleet_prices",
    metadata,
    Column("fleet", String(128), primary_key=True),
    Column("at_ms", BigInteger, primary_key=True),
    Column("price_micro_usd_per_hour", BigInteger, nullable=False),
)

fleet_time = Table(  # billed time of each hour by its use, from the loop `fleet-time`; kept for a day
    "fleet_time",
    metadata,
    Column("fleet", String(128), primary_key=True),
    Column("hour_ms", BigInteger, primary_key=True),  # its begin
    Column("startup_ms", BigInteger, nullable=False),
    Column("useful_ms", BigInteger, nullable=False),
    Column("lost_ms", BigInteger, nullable=False),
    Column("at_risk_ms", BigInteger, nullable=False),
    Column("idle_ms", BigInteger, nullable=False),
    Column("billed_micro_usd", BigInteger, nullable=False),
)

machines = Table(  # how a machine fares with jobs of a kind
    "machines",
    metadata,
    Column("machine_id", String(128), primary_key=True),
    Column("kind", String(32), primary_key=True),
    Column("state", String(16), nullable=False),
    Column("reason", Text, nullable=False, server_default=""),
    at("since_ms"),
    Column("strikes", Float, nullable=False, server_default="0"),  # as of scored_at_ms; they decay
    at("scored_at_ms"),
    Column("quota", Integer, nullable=False),
    Column("successes_in_a_row", Integer, nullable=False, server_default="0"),
    Column("recent_failures", sa.JSON, nullable=False, server_default="[]"),  # each with its attempt and its weight
    Column("canary_job_id", String(40)),
    Column("proven", Boolean, nullable=False, server_default=sa.false()),  # it succeeded since its last quarantine
    Column("quarantines", Integer, nullable=False, server_default="0"),  # in a row
    Column("quarantined_times", Integer, nullable=False, server_default="0"),  # ever
    Column("by_hand", Boolean, nullable=False, server_default=sa.false()),  # an operator quarantined it
    Index("ix_machines_state", "state"),
    Index("ix_machines_canary", "canary_job_id"),
)

reallocations = Table(
    "reallocations",
    metadata,
    Column("id", RowId, primary_key=True, autoincrement=True),
    Column("fleet", String(128), nullable=False),
    Column("instance_id", String(128), nullable=False),
    Column("machine_id", String(128)),
    Column("reason", Text, nullable=False),
    at("at_ms"),
    Index("ix_reallocations_fleet", "fleet", "at_ms"),
)
