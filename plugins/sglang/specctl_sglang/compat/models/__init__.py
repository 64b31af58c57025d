"""Architectures that SGLang lacks, for its registry of models."""
