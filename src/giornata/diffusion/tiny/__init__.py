"""Small models that the project makes itself, for tests and the demo. Read `tiny_model` first."""
