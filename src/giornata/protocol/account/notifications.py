"""A person's own notifications over HTTP: mails about the jobs that the person submitted to a project."""

from enum import StrEnum

from pydantic import Field

from giornata.protocol.model import Message, Reply


class ToldJobs(StrEnum):
    """The ends of own jobs that a person is told of."""

    NONE = "none"
    FAILURES = "failures"  # what failed, expired or is paused
    ALL = "all"


class SetNotifications(Message):
    """`PUT /v1/me/notifications`: the mails about the caller's own jobs in the project."""

    jobs: ToldJobs
    daily_digest: bool = Field(False, description="One mail a day, at 07:00 UTC, instead of one for each job.")


class Notifications(Reply):
    """The mails that the caller gets about the own jobs in the project."""

    project_id: str
    email: str
    jobs: ToldJobs
    daily_digest: bool = False
