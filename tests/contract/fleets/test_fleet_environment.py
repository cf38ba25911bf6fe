"""Variables of a driver's options that contradict the fleet's table are refused before a node is asked for."""

import pytest
from tests.contract.fleets.driver_skypilot import SkyPilotUnderTest
from tests.fixtures.kubernetes_under_test import strict_cluster
from tests.fixtures.salad_cloud import SaladCloud
from tests.fixtures.salad_rented import Rented

from giornata.domain.errors import InvalidInput

CONTRADICTING = {"GIORNATA_KINDS": '["train"]', "GIORNATA_PLACES": "2", "GIORNATA_DEVICE": "cpu"}


def open_kubernetes(directory):
    with strict_cluster(directory, environment=CONTRADICTING):
        raise AssertionError("it was opened")


OPENING = {
    "fleets.gpu.options.environment": open_kubernetes,
    "fleets.gpu.options.environment ": lambda _directory: SkyPilotUnderTest(environment=CONTRADICTING),
    "fleets.loras.options.env": lambda _directory: Rented(SaladCloud()).fleet(env=CONTRADICTING),
}


@pytest.mark.parametrize("where", OPENING)
def test_variables_that_contradict_the_table_are_refused(where, tmp_path):
    with pytest.raises(InvalidInput) as refused:
        OPENING[where](tmp_path)
    named = {fault.where for fault in refused.value.faults}
    assert named == {f"{where.strip()}.GIORNATA_KINDS", f"{where.strip()}.GIORNATA_PLACES"}
    assert all("table" in fault.hint for fault in refused.value.faults)
