"""Nodes rented from SaladCloud: one container group for each fleet, whose replicas are the nodes.

`client` speaks HTTP within the provider's limits, `calls` names its verbs, `translation` turns its documents into our
words, `driver` is the fleet, and `identity` reads the tokens that the provider gives to its containers.
"""

from giornata.fleets.salad.opening import open_fleet, open_identities
from giornata.fleets.salad.options import Options

__all__ = ["Options", "open_fleet", "open_identities"]
