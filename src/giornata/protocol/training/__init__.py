"""The sections of a train spec, and what in them contradicts itself. Field names are those of diffusers' scripts."""
