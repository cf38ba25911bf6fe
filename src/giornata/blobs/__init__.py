"""Object storage: filesystem and S3 under one contract."""
