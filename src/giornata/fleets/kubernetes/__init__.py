"""Nodes as pods of a Kubernetes cluster, counted by a Deployment or a StatefulSet.

Read `driver` first: the class is the fleet. `workload` writes the manifest and compares it with the cluster's, `pods`
turns a pod into an instance, `shortage` says why pods are missing, `calls` and `errors` speak to the API server.
"""

from giornata.fleets.kubernetes.driver import KubernetesFleet, open_fleet
from giornata.fleets.kubernetes.options import KubernetesOptions

OPTIONS = KubernetesOptions
__all__ = ["OPTIONS", "KubernetesFleet", "open_fleet"]
