"""Small models that the project makes itself, for tests and the demo."""
