"""Owners of machines, by their ids: `desk-1` is the operator's, `desk-1@ann` belongs to the project ann.

The server adds the project to the id of every machine that a project's own key speaks for. A node cannot say an id
with an `@`, so no key can name a machine of another owner. Fleets of a project's own nodes are named alike.
"""

AT = "@"
LONGEST_ID = 128


def own_id(name: str, project_id: str) -> str:
    """Return the server's id for a machine, or a fleet, of the project's own."""
    return f"{name}{AT}{project_id}"


def owner_of(machine_id: str) -> str | None:
    """The project whose own machine it is; None: the operator's."""
    _, found, project_id = machine_id.rpartition(AT)
    return project_id if found else None


def own_name(known_id: str, project_id: str) -> str:
    """Return the project's own name for its machine or fleet: the id without `@` and the project."""
    return known_id.removesuffix(f"{AT}{project_id}")


def proves_against(success_on: str, failure_on: str) -> bool:
    """Return True when a job that one machine has done shows that a failure of the other was that machine's own.

    Machines of different owners prove nothing: a project could bring its own to make the operator's look guilty.
    """
    return success_on != failure_on and owner_of(success_on) == owner_of(failure_on)
