"""Which version of their protocol a node and a server speak."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from giornata.domain.errors import ProtocolMismatch
from giornata.domain.protocol_versions import SpokenVersions, agreed_version, versions_of

versions = st.tuples(st.integers(1, 12), st.integers(1, 12)).map(
    lambda pair: SpokenVersions(oldest=min(pair), newest=max(pair))
)


@given(node=versions, server=versions)
def test_agreed_version_is_the_newest_that_both_speak(node: SpokenVersions, server: SpokenVersions) -> None:
    common = [each for each in range(1, 13) if each in node and each in server]
    if common:
        assert agreed_version(node=node, server=server) == max(common)
    else:
        with pytest.raises(ProtocolMismatch, match="too old" if node.newest < server.oldest else "too new"):
            agreed_version(node=node, server=server)


@given(versions)
def test_versions_are_read_as_they_are_said(spoken: SpokenVersions) -> None:
    assert versions_of(str(spoken)) == spoken


@pytest.mark.parametrize("said", [None, "", "0", "one", "1-", "-1", "1,2", "99999", "1\n"])
def test_side_that_says_nothing_readable_is_of_version_one(said: str | None) -> None:
    assert versions_of(said) == SpokenVersions(oldest=1, newest=1)


@pytest.mark.parametrize(
    ("node", "server", "advice"),
    [
        ("1", "2-3", "node is too old: .* version 1 .* server 2-3; install the server's version"),
        ("3-4", "1-2", "node is too new: .* version 3-4 .* server 1-2; upgrade the server, or install"),
    ],
)
def test_mismatch_names_both_sides_and_what_to_do(node: str, server: str, advice: str) -> None:
    with pytest.raises(ProtocolMismatch, match=advice):
        agreed_version(node=versions_of(node), server=versions_of(server))
