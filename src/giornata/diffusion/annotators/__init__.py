"""Control pictures from pictures: `inline` needs no weights, `by_model` runs models of transformers."""
