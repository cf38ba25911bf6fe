"""What the use cases need of the world. `store` leads to every query; the other ports have several implementations."""
