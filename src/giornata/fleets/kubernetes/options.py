"""Options of the kubernetes driver, checked when the server starts."""

import re
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

from kubernetes.utils.quantity import parse_quantity
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from giornata.fleets.opening import FleetOptions

NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"  # RFC 1123, as the cluster has it
LABEL = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"
LABEL_KEY = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
LEAST_BYTES = 64 * 2**20
_QUANTITY = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?\d+)?", re.ASCII)

SecretName = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]
LabelKey = Annotated[str, Field(pattern=LABEL_KEY, max_length=317)]
LabelValue = Annotated[str, Field(pattern=LABEL, max_length=63)]


def _amount(given: str) -> Decimal:
    """Convert an amount to whole units: CPUs, bytes. Raises ValueError for what the cluster would not take."""
    if not _QUANTITY.fullmatch(given):
        raise ValueError(f"{given!r} is no Kubernetes quantity: a number is expected, as in 500m, 4 or 24Gi")
    return Decimal(parse_quantity(given))  # type: ignore[no-untyped-call]


def _positive(given: str) -> str:
    if _amount(given) <= 0:
        raise ValueError(f"{given!r} is not enough: more than 0 is expected")
    return given


def _bytes(given: str) -> str:
    if _amount(given) < LEAST_BYTES:
        raise ValueError(f"{given!r} is less than 64Mi: bytes are expected, with a unit as in 24Gi")
    return given


Quantity = Annotated[str, AfterValidator(_positive)]
Bytes = Annotated[str, AfterValidator(_bytes)]


class _Toleration(BaseModel):
    """A toleration as the API server takes it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    key: str | None = Field(None, pattern=LABEL_KEY, max_length=317)
    operator: Literal["Exists", "Equal"] = "Equal"
    value: str | None = Field(None, pattern=LABEL, max_length=63)
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    tolerationSeconds: int | None = None

    @model_validator(mode="after")
    def _agrees(self) -> "_Toleration":
        if self.operator == "Exists" and self.value:
            raise ValueError("with the operator Exists there is no value: leave it out, or use Equal")
        if self.operator == "Equal" and not self.key:
            raise ValueError("without a key the operator has to be Exists")
        if self.tolerationSeconds is not None and self.effect != "NoExecute":
            raise ValueError("tolerationSeconds goes with the effect NoExecute alone")
        return self


def _toleration(given: dict[str, Any]) -> dict[str, Any]:
    """The toleration as it was given. Raises ValueError with what the cluster would refuse."""
    try:
        _Toleration.model_validate(given)
    except ValidationError as error:
        faults = (f"{'.'.join([*map(str, each['loc'])]) or 'toleration'}: {each['msg']}" for each in error.errors())
        raise ValueError("; ".join(faults)) from None
    return given


Toleration = Annotated[dict[str, Any], AfterValidator(_toleration)]


FLEET_LABEL = "giornata/fleet"


class KubernetesOptions(FleetOptions):
    """The options of the fleet: its cluster and its pods. Without `image` the workload is the operator's to make."""

    # the cluster
    kubeconfig: Path | None = Field(
        None,
        description="Path of a kubeconfig file. Default: the service account of the server's pod, else KUBECONFIG, "
        "else ~/.kube/config.",
    )
    context: str | None = Field(None, description="Context of the kubeconfig. Default: the current context.")
    namespace: str | None = Field(
        None,
        pattern=NAME,
        description="Namespace of the workload. Default: the namespace of the server's pod or of the context, else "
        "default.",
    )
    timeout_s: float = Field(
        20.0, gt=0, le=300, description="Maximum seconds that the server waits for an answer of the cluster's API."
    )

    # the workload
    workload_kind: Literal["Deployment", "StatefulSet"] = Field(
        "Deployment", description="Kind of the workload that is scaled."
    )
    workload_name: str | None = Field(
        None,
        pattern=NAME,
        max_length=63,
        description="Name of the workload. Default: giornata- and the name of the fleet.",
    )
    most_nodes: int | None = Field(
        None, ge=0, description="Maximum number of nodes that the cluster can hold. Default: unknown."
    )
    price_usd_per_hour: float = Field(0.0, ge=0, le=1000, description="Price of one node in US dollars per hour.")

    # a pod
    image: str | None = Field(
        None,
        min_length=1,
        description="Container image of a node, if possible by digest. Default: you create the workload yourself.",
    )
    image_pull_secrets: tuple[SecretName, ...] = Field(
        (), description="Names of Secrets with the credentials of the image registry."
    )
    server_url: str | None = Field(
        None, description="URL by which pods reach the server. Default: the public URL of the server."
    )
    node_key_secret: str = Field(
        "giornata-node-key", pattern=NAME, description="Name of the Secret that holds the node key."
    )
    node_key_field: str = Field(
        "key", min_length=1, description="Field of the Secret node_key_secret that holds the node key."
    )
    gpus: int = Field(1, ge=0, le=16, description="Number of GPUs that each pod requests.")
    gpu_resource: str = Field(
        "nvidia.com/gpu", pattern=LABEL_KEY, description="Name of the resource with which a pod requests GPUs."
    )
    cpu: Quantity = Field("4", description="CPU request of a pod, as a Kubernetes quantity.")
    memory: Bytes = Field("24Gi", description="Memory request and limit of a pod, as a Kubernetes quantity.")
    cache_size: Bytes = Field(
        "60Gi",
        description="Request for ephemeral storage, and size limit of the scratch volume for models, inputs and "
        "checkpoints, as a Kubernetes quantity. A machine with less free storage gets no pod.",
    )
    cache_claim: str | None = Field(
        None,
        pattern=NAME,
        description="PersistentVolumeClaim (ReadWriteMany) that keeps models, in addition to the scratch volume. "
        "Default: none.",
    )
    models_in_image: bool = Field(
        False,
        description="true: the image contains models in its own HF_HOME, and the container's files are writable.",
    )
    environment: dict[str, str] = Field(
        default_factory=dict, description="Additional environment variables of the node. Default: none."
    )
    node_selector: dict[LabelKey, LabelValue] = Field(
        default_factory=dict, description="Labels that a machine must have to run pods. Default: none."
    )
    tolerations: tuple[Toleration, ...] = Field(
        (
            {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
            {"key": "cloud.google.com/gke-spot", "operator": "Exists", "effect": "NoSchedule"},
            {"key": "kubernetes.azure.com/scalesetpriority", "operator": "Exists", "effect": "NoSchedule"},
        ),
        description="Taints that a pod tolerates. By default, those of GPU machines and of spot machines.",
    )
    priority_class: str | None = Field(
        None, pattern=NAME, description="PriorityClass of the pods. Default: the cluster's."
    )
    service_account: str | None = Field(
        None,
        pattern=NAME,
        description="ServiceAccount of the pods, which get no token of it. Default: that of the namespace.",
    )
    grace_s: int = Field(
        30,
        ge=1,
        le=3600,
        description="Seconds for the last checkpoint after SIGTERM. The cluster kills the pod 15 s later; on spot "
        "machines 25 s after the notice.",
    )
    run_as: int = Field(10001, ge=1, description="User id and group id of the node's processes.")
