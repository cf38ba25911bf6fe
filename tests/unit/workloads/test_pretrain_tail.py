"""Lines of a run that come over connections which break."""

from collections.abc import AsyncIterator, Callable, Sequence

from giornata.workloads.pretrain.ray_jobs import Tail

ALL = ("one", "two", "three", "four")


class Connections:
    """Each is a list of pieces, of which the last may be an error; the run has ended when there are no more."""

    def __init__(self, *connections: Sequence[str | ConnectionError]) -> None:
        self._left = list(connections)
        self.asked = 0

    def connect(self) -> AsyncIterator[str]:
        return self._pieces(self._left.pop(0))

    async def _pieces(self, pieces: Sequence[str | ConnectionError]) -> AsyncIterator[str]:
        for piece in pieces:
            if isinstance(piece, ConnectionError):
                raise piece
            yield piece

    def ended(self) -> bool:
        self.asked += 1
        return not self._left


def read(connections: Connections, line: Callable[[str], None]) -> Tail:
    tail = Tail(connections.connect, connections.ended, line, retry_s=0.0)
    tail.read()
    return tail


def test_tail_joins_pieces_from_connections_into_lines() -> None:
    heard: list[str] = []
    tail = read(Connections(["one\ntw", "o\n\nthree", "\nfour"]), heard.append)
    assert heard == list(ALL)
    assert tail.listening.whole.is_set()


def test_a_connection_that_breaks_is_made_again_and_no_line_comes_twice() -> None:
    """Whether it raises, or ends as if the run had ended; within a line or between two."""
    heard: list[str] = []
    connections = Connections(
        ["one\ntw", ConnectionError("reset")], ["one\ntwo\n"], [ConnectionError("away")], ["one\ntwo\nthree\nfour\n"]
    )
    tail = read(connections, heard.append)
    assert heard == list(ALL)
    assert tail.listening.whole.is_set()


def test_a_cluster_that_does_not_say_whether_the_run_has_ended_is_asked_again() -> None:
    class Away(Connections):
        def ended(self) -> bool:
            if super().ended() and self.asked == 2:
                self._left.append(["one\n"])
                raise ConnectionError("away")
            return not self._left

    heard: list[str] = []
    connections = Away(["one\n"], ["one\n"])
    read(connections, heard.append)
    assert heard == ["one"]
    assert connections.asked == 3


def test_tail_gives_no_more_lines_after_listener_leaves() -> None:
    heard: list[str] = []

    def line(text: str) -> None:
        heard.append(text)
        tail.listening.left.set()

    connections = Connections(["one\n", "two\n"], ["one\ntwo\nthree\n"])
    tail = Tail(connections.connect, connections.ended, line, retry_s=0.0)
    tail.read()
    assert heard == ["one"]
    assert not tail.listening.whole.is_set()
