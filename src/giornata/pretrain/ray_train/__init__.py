"""Ray and Ray Train: what starts the trainers and keeps them running. Read `fit` first."""
