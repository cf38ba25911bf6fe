"""Results of training: checkpoints, files, sample images, metrics. Read `checkpoint_writer` first."""
