"""Control pictures from pictures. Read `inline`, which needs no weights, then `by_model`, which runs models."""
