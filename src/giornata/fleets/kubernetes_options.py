"""What the kubernetes driver can be told."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from giornata.fleets.kubernetes_values import (
    LABEL_KEY,
    NAME,
    Bytes,
    LabelKey,
    LabelValue,
    Quantity,
    SecretName,
    Toleration,
)
from giornata.fleets.opening import FleetOptions

FLEET_LABEL = "giornata/fleet"


class Options(FleetOptions):
    """Where the cluster is, and what a pod is. Without `image` the workload is the operator's to make."""

    # the cluster
    kubeconfig: Path | None = Field(None, description="File. Default: the pod's own account, else KUBECONFIG.")
    context: str | None = Field(None, description="Context of the kubeconfig.")
    namespace: str | None = Field(
        None, pattern=NAME, description="Default: the pod's own, the context's, or default."
    )
    timeout_s: float = Field(20.0, gt=0, le=300, description="For one answer of the cluster's API.")

    # the workload
    workload_kind: Literal["Deployment", "StatefulSet"] = Field("Deployment", description="What is scaled.")
    workload_name: str | None = Field(None, pattern=NAME, max_length=63, description="Default: giornata-FLEET.")
    most_nodes: int | None = Field(None, ge=0, description="What the cluster can hold, if that is known.")
    price_usd_per_hour: float = Field(0.0, ge=0, le=1000, description="What an hour of one node costs.")

    # a pod
    image: str | None = Field(None, min_length=1, description="Container image of a node, by digest if you can.")
    image_pull_secrets: tuple[SecretName, ...] = Field((), description="Secrets with the registry's credentials.")
    server_url: str | None = Field(None, description="How pods reach the server. Default: its public URL.")
    node_key_secret: str = Field("giornata-node-key", pattern=NAME, description="Secret that holds the node key.")
    node_key_field: str = Field("key", min_length=1, description="The key's field in that Secret.")
    gpus: int = Field(1, ge=0, le=16, description="GPUs of one pod.")
    gpu_resource: str = Field("nvidia.com/gpu", pattern=LABEL_KEY, description="What the device plugin calls a GPU.")
    cpu: Quantity = Field("4", description="CPUs that a pod asks for, as a Kubernetes quantity.")
    memory: Bytes = Field("24Gi", description="Memory that a pod asks for and may have, as a Kubernetes quantity.")
    cache_size: Bytes = Field(
        "60Gi",
        description="Ephemeral storage that a pod asks for, and bound of its scratch volume for models, inputs and "
        "checkpoints, as a Kubernetes quantity. A machine with less free gets no pod.",
    )
    cache_claim: str | None = Field(
        None, pattern=NAME, description="A PersistentVolumeClaim to keep models on (ReadWriteMany), besides scratch."
    )
    models_in_image: bool = Field(
        False, description="The image has models in its own HF_HOME. Then its file system is not read-only."
    )
    environment: dict[str, str] = Field(default_factory=dict, description="More variables of the node.")
    node_selector: dict[LabelKey, LabelValue] = Field(
        default_factory=dict, description="Labels that a machine must have."
    )
    tolerations: tuple[Toleration, ...] = Field(
        (
            {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
            {"key": "cloud.google.com/gke-spot", "operator": "Exists", "effect": "NoSchedule"},
            {"key": "kubernetes.azure.com/scalesetpriority", "operator": "Exists", "effect": "NoSchedule"},
        ),
        description="Taints that a pod bears. Default: those of GPU machines and of spot machines.",
    )
    priority_class: str | None = Field(None, pattern=NAME, description="PriorityClass of the pods.")
    service_account: str | None = Field(
        None, pattern=NAME, description="ServiceAccount; no token is given either way."
    )
    grace_s: int = Field(
        30,
        ge=1,
        le=3600,
        description="Time for the last checkpoint; the cluster kills 15 s later, spot machines at 25 s.",
    )
    run_as: int = Field(10001, ge=1, description="User and group of the node's processes.")
