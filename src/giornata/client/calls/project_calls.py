"""The HTTP calls of administration: projects with their limits and money, keys, and secrets."""

from collections.abc import Iterator
from datetime import date, datetime

from pydantic import SecretStr

from giornata.client.calls.operator_calls import OperatorCalls, quoted
from giornata.domain.generation.picture import SafetyPolicy
from giornata.protocol.project.admin import (
    Costs,
    CreateProject,
    Project,
    ProjectPage,
    SetBudget,
    SetLimits,
    SetSafety,
)
from giornata.protocol.project.daily_costs import DailyCosts
from giornata.protocol.project.quotas import ProjectQuotas, SetQuotas
from giornata.protocol.project.secrets import Secret, SecretPage, SetSecret


class ProjectCalls(OperatorCalls):
    """The part of `giornata.client.client.Client` that is about projects, their keys and their secrets."""

    def projects(self) -> Iterator[Project]:
        """All projects for a root admin, else one's own."""
        return self._pages("/v1/projects", ProjectPage)

    def costs(self, *, since: datetime | None = None, until: datetime | None = None) -> Costs:
        """Return the costs of work in this time, by default the last 30 days. A root admin also gets fleet bills."""
        times = {name: at.isoformat() for name, at in (("since", since), ("until", until)) if at is not None}
        return self._get("/v1/costs", Costs, times)

    def daily_costs(
        self, *, since: date | None = None, until: date | None = None, label: str | None = None
    ) -> DailyCosts:
        """Return the costs of work on each day in UTC, by default the last 30; with a label by its values."""
        given = {"since": since and since.isoformat(), "until": until and until.isoformat(), "label": label}
        return self._get("/v1/costs/days", DailyCosts, {name: text for name, text in given.items() if text})

    def set_project_budget(self, project_id: str, budget_micro_usd: int | None) -> Project:
        """Set the total budget of all jobs of the project; None: no limit. For an admin of the installation."""
        return self.set_project_budgets(project_id, SetBudget(budget_micro_usd=budget_micro_usd))

    def set_project_monthly_budget(self, project_id: str, monthly_budget_micro_usd: int | None) -> Project:
        """Set the project's budget per calendar month in UTC; None: no limit. For an admin of the installation."""
        return self.set_project_budgets(project_id, SetBudget(monthly_budget_micro_usd=monthly_budget_micro_usd))

    def set_project_budgets(self, project_id: str, body: SetBudget) -> Project:
        """The budgets that are given in `body`; the other one stays. For an admin of the installation."""
        return self._connection.call("PUT", f"/v1/projects/{quoted(project_id)}/budget", Project, body=body)

    def set_project_limits(self, project_id: str, *, max_pictures: int | None) -> Project:
        """Most pictures of a dataset; None: as the installation says. For an admin of the installation."""
        body = SetLimits(max_pictures=max_pictures)
        return self._connection.call("PUT", f"/v1/projects/{quoted(project_id)}/limits", Project, body=body)

    def project_quotas(self, project_id: str) -> ProjectQuotas:
        """Return the limits of the project, and what it uses of them."""
        return self._get(f"/v1/projects/{quoted(project_id)}/quotas", ProjectQuotas)

    def set_project_quotas(self, project_id: str, body: SetQuotas) -> ProjectQuotas:
        """Set the limits that are given in `body`; None lifts one, others stay. For an admin of the installation."""
        return self._connection.call("PUT", f"/v1/projects/{quoted(project_id)}/quotas", ProjectQuotas, body=body)

    def set_project_safety(self, project_id: str, safety: SafetyPolicy) -> Project:
        """Set what becomes of the project's unsafe pictures: off, flag or block. For an admin of the installation."""
        body = SetSafety(safety=safety)
        return self._connection.call("PUT", f"/v1/projects/{quoted(project_id)}/safety", Project, body=body)

    def create_project(self, project_id: str, *, name: str | None = None) -> Project:
        """Create a project, which is a tenant of the installation."""
        body = CreateProject(id=project_id, name=name)
        return self._connection.call("POST", "/v1/projects", Project, body=body, repeatable=False)

    def set_secret(self, name: str, value: str) -> Secret:
        """Keep a value that jobs may name, in the place of the one before. It cannot be read back."""
        body = SetSecret(value=SecretStr(value))
        return self._connection.call("PUT", f"/v1/secrets/{quoted(name)}", Secret, body=body)

    def secrets(self) -> tuple[Secret, ...]:
        """The project's secrets by name, without their values."""
        return self._get("/v1/secrets", SecretPage).items

    def delete_secret(self, name: str) -> Secret:
        """Delete a secret of the project."""
        return self._connection.call("DELETE", f"/v1/secrets/{quoted(name)}", Secret, repeatable=False)
