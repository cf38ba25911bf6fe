"""Nodes rented from SaladCloud: one or more container groups for each fleet, whose replicas are the nodes.

Read `driver` first: the class is the fleet. `container_groups` names the groups, finds them, changes them and spreads
nodes over them. `shortage` says why instances are missing. `client` keeps to the provider's request limits, `calls`
has its routes, `translation` converts its documents, and `identity` verifies the tokens of its containers.
"""

from giornata.fleets.salad.opening import open_fleet, open_identities
from giornata.fleets.salad.options import SaladOptions

OPTIONS = SaladOptions
__all__ = ["OPTIONS", "open_fleet", "open_identities"]
