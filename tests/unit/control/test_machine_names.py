"""What a project is shown of machines in the data of events."""

from giornata.control.access.machine_names import MachineNames
from giornata.protocol.project.admin import ROOT_PROJECT

LIFTED = {"name": "ban-lifted", "machine_ids": ["desk-1", "desk-2@ann"], "message": "no other machine"}


def test_several_machines_of_an_event_are_pseudonyms_but_for_the_projects_own():
    shown = MachineNames(project_id="ann", key=b"key").event_data(LIFTED)
    operators, own = shown["machine_ids"]
    assert operators.startswith("operator~") and "desk-1" not in operators
    assert own == "desk-2"
    assert {**shown, "machine_ids": ()} == {**LIFTED, "machine_ids": ()}


def test_the_operator_sees_the_ids_of_several_machines_of_an_event():
    assert MachineNames(project_id=ROOT_PROJECT, key=b"key").event_data(LIFTED) == LIFTED
