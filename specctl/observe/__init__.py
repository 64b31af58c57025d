"""Metrics in: the engine's /metrics and the plugin's telemetry become an Observation."""
