"""Values that a cluster would refuse, refused when the server starts."""

import re
from decimal import Decimal
from typing import Annotated, Any, Literal

from kubernetes.utils.quantity import parse_quantity
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"  # RFC 1123, as the cluster has it
LABEL = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"
LABEL_KEY = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
LEAST_BYTES = 64 * 2**20
_QUANTITY = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?\d+)?", re.ASCII)

SecretName = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]
LabelKey = Annotated[str, Field(pattern=LABEL_KEY, max_length=317)]
LabelValue = Annotated[str, Field(pattern=LABEL, max_length=63)]


def _amount(given: str) -> Decimal:
    """In whole units: CPUs, bytes. Raises ValueError for what the cluster would not take."""
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
