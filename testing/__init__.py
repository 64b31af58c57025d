"""Servers, loads and checks that tests, demo and benchmarks share."""
