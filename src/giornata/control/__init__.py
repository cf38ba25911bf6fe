"""Use cases, a concept a file. `ports` declares what they need. Read `context`, then `attempts`."""
