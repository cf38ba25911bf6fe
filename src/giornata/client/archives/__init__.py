"""Files that a client writes and checks: archives of projects, model cards, signed records."""
