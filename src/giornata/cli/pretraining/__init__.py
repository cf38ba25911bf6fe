"""The commands of pre-training: `giornata pretrain`. Read `pretrain` first."""
