"""Use cases, a concept a file. `ports` declares what they need; read `context` and `attempts` first."""
