"""What a server remembers of damaged model files."""

from giornata.domain.generation.suspect_models import MOST_FILES, SuspectModels


def test_node_that_names_very_many_files_fills_no_memory_and_hides_no_known_one() -> None:
    suspects = SuspectModels()
    suspects.note("node_1", ["known"], at_ms=0)
    suspects.note("node_2", [f"made up {number}" for number in range(2 * MOST_FILES)], at_ms=0)
    assert not suspects.is_known("node_2", f"made up {2 * MOST_FILES - 1}")
    assert suspects.to_verify("node_3", frozenset({"known", f"made up {MOST_FILES}"})) == ("known",)
    suspects.note("node_2", ["known"], at_ms=0)
    assert suspects.is_known("node_2", "known")
