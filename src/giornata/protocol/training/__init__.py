"""The sections of a train spec, by the field names of diffusers' scripts. Read `train_fields` first."""
