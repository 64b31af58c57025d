"""Command line: parse, build, run."""
