"""Ceilings of running jobs are set, lowered, raised and lifted."""

from tests.contract.model.model_rig import PROJECTS, ROOT
from tests.contract.model.money_actions import MoneyActions

from giornata.control.projects.set_quotas import set_quotas
from giornata.protocol.project.quotas import SetQuotas

CEILINGS = (0, 1, 1, 2, None)


class QuotaActions(MoneyActions):
    """Actions of an operator who bounds projects. In threads nobody does: the answers could not be foretold."""

    def ceiling(self, a: int, b: int) -> None:
        """A project may run so many jobs at a time from now on; those that run go on."""
        if self.exact:
            change = SetQuotas(max_running_jobs=CEILINGS[b % len(CEILINGS)])
            self.call(lambda: set_quotas(self.ctx, ROOT, PROJECTS[a % len(PROJECTS)], change))
