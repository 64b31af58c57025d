"""Telemetry logs of running servers: the format, writing and reading."""
