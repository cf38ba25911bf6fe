"""What a cluster, and the client that asks it, say in words that an operator can act on."""

import ssl

import pytest
import urllib3
from urllib3.exceptions import (
    ConnectTimeoutError,
    MaxRetryError,
    NameResolutionError,
    NewConnectionError,
    ProtocolError,
    SSLError,
)

from giornata.domain.errors import FleetUnavailable
from giornata.fleets.kubernetes.errors import in_words, translated

# As the cluster's programs wrote them.
SAID = {
    'Deployment in version "v1" cannot be handled as a Deployment: v1.Deployment.Spec: v1.DeploymentSpec.Template: '
    "v1.PodTemplateSpec.Spec: v1.PodSpec.Tolerations: []v1.Toleration: readObjectFieldAsBytes: expect : after object "
    "field, but found n, error found in #10 byte of ...|: 1}|..., bigger context ...|x|...": (
        'Deployment in version "v1" cannot be handled as a Deployment: []v1.Toleration: expect : after object field, '
        "but found n"
    ),
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'": (
        "this is no quantity such as 500m, 4 or 24Gi"
    ),
    "json: cannot unmarshal string into Go struct field Toleration.spec.tolerationSeconds of type int64": (
        "spec.tolerationSeconds has a value of the wrong type: string"
    ),
    'failed calling webhook "x.example": Post "https://x.svc:443/check?timeout=10s": context deadline exceeded': (
        'failed calling webhook "x.example": no answer came in time'
    ),
    'Post "https://x.svc/": dial tcp 10.0.0.1:443: connect: connection refused': "10.0.0.1:443: connection refused",
    'rpc error: code = NotFound desc = failed to pull and unpack image "r.example/it:1": failed to resolve reference '
    '"r.example/it:1": r.example/it:1: not found': "image r.example/it:1: r.example/it:1: not found",
    "a lowercase RFC 1123 label must consist of lower case characters (e.g. 'my-name', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')": "a lowercase RFC 1123 label must consist of lower case characters",
}


@pytest.mark.parametrize("said", SAID)
def test_kubernetes_error_message_leaves_out_go_internals(said):
    assert in_words(said) == SAID[said]


def raised(error: Exception, cause: BaseException | None = None) -> Exception:
    """As urllib3 raises it, from what it came from."""
    pool = urllib3.HTTPSConnectionPool("cluster.example")
    try:
        try:
            raise error from cause
        except Exception as reason:
            raise MaxRetryError(pool, "/api", reason) from reason
    except MaxRetryError as wrapped:
        return wrapped


CONNECTION = urllib3.connection.HTTPSConnection("cluster.example")
UNTRUSTED = ssl.SSLCertVerificationError()
UNTRUSTED.verify_message = "self-signed certificate"
UNREACHABLE = [
    (
        raised(NewConnectionError(CONNECTION, "no"), ConnectionRefusedError(111, "Connection refused")),
        "connection refused",
    ),
    (raised(NameResolutionError("cluster.example", CONNECTION, OSError(-2, "no"))), "its name cannot be resolved"),
    (raised(ConnectTimeoutError(CONNECTION, "no")), "it did not answer within 7 s"),
    (raised(SSLError(UNTRUSTED)), "its certificate is not trusted (self-signed certificate)"),
    (raised(SSLError(ssl.SSLError(1, "[SSL] wrong version number"))), "it does not speak TLS as expected"),
    (raised(ProtocolError("Connection aborted.")), "it ended the connection without an answer"),
]


@pytest.mark.parametrize(("error", "why"), UNREACHABLE, ids=[why for _, why in UNREACHABLE])
def test_why_a_cluster_cannot_be_reached_is_said_without_the_clients_classes(error, why):
    with pytest.raises(FleetUnavailable) as caught, translated("https://cluster.example", timeout_s=7):
        raise error
    assert str(caught.value) == f"the cluster at https://cluster.example cannot be reached: {why}"
