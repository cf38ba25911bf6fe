"""What the use cases need of the world."""
