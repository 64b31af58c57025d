"""One engine's HTTP interface: the contract's routes and its /metrics, polled and changed."""
