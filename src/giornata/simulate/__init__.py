"""The real control plane on a virtual clock, with a modelled fleet."""
