"""Use cases, a concept a file. `ports` declares what they need; read `context`, `claim` and `heartbeat` first."""
