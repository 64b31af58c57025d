"""What daemon and engine say to each other: table, telemetry, capabilities, buckets.

Plugins and daemon both import this package; it imports neither.
"""

CONTRACT_VERSION = 2
ROUTE_PREFIX = "/specctl/v1"

__all__ = ["CONTRACT_VERSION", "ROUTE_PREFIX"]
