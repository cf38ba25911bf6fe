"""Signatures of webhooks, held to the reference library."""

from datetime import UTC, datetime

import pytest
from standardwebhooks import Webhook

from giornata.protocol.webhooks import TOLERANCE_S, is_genuine, key_of, signed_headers

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
BODY = '{"type":"job.succeeded","data":{"name":"ä"}}'.encode()
NOW_S = 1_767_323_045


def headers(**changes):
    return signed_headers(SECRET, delivery_id="evt_1", timestamp_s=NOW_S, body=BODY) | changes


def test_a_signature_is_the_reference_librarys():
    wanted = Webhook(SECRET).sign("evt_1", datetime.fromtimestamp(NOW_S, UTC), BODY.decode())
    assert headers()["webhook-signature"] == wanted


def test_a_genuine_delivery_is_known_and_nothing_else():
    assert is_genuine(SECRET, headers(), BODY, now_s=NOW_S)
    assert is_genuine(
        SECRET, headers(**{"webhook-signature": "v1,AAAA " + headers()["webhook-signature"]}), BODY, now_s=NOW_S
    )
    assert not is_genuine(SECRET, headers(), BODY + b" ", now_s=NOW_S)
    assert not is_genuine("whsec_" + "A" * 32, headers(), BODY, now_s=NOW_S)
    assert not is_genuine(SECRET, headers(**{"webhook-id": "evt_2"}), BODY, now_s=NOW_S)
    assert not is_genuine(SECRET, headers(**{"webhook-timestamp": str(NOW_S + 1)}), BODY, now_s=NOW_S)
    assert not is_genuine(SECRET, headers(**{"webhook-timestamp": "soon"}), BODY, now_s=NOW_S)
    assert not is_genuine(SECRET, {}, BODY, now_s=NOW_S)


def test_a_delivery_of_long_ago_is_not_genuine():
    assert is_genuine(SECRET, headers(), BODY, now_s=NOW_S + TOLERANCE_S)
    assert not is_genuine(SECRET, headers(), BODY, now_s=NOW_S + TOLERANCE_S + 1)


def test_a_secret_may_be_any_long_text():
    assert key_of("a long sentence that nobody knows") == b"a long sentence that nobody knows"
    with pytest.raises(ValueError, match="16"):
        key_of("short")
    with pytest.raises(ValueError, match="base64"):
        key_of("whsec_not base64!")
