"""What the load benchmarks share: real databases and servers to load, requests on raw sockets, figures."""
