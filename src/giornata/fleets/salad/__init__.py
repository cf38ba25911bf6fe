"""Nodes rented from SaladCloud: one container group for each fleet, or several, whose replicas are the nodes.

`driver` is the fleet: read it first. `container_group` finds and changes one group, `spread` shares nodes out among
groups, `group_names` names them, `quota` says what the organization has left. `client` speaks HTTP within the
provider's limits, `calls` names its verbs, `translation` turns its documents into our words, and `identity` reads the
tokens that the provider gives to its containers.
"""

from giornata.fleets.salad.opening import open_fleet, open_identities
from giornata.fleets.salad.options import Options

__all__ = ["Options", "open_fleet", "open_identities"]
