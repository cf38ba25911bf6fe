from tests.fixtures.seaweed import seaweed  # noqa: F401
