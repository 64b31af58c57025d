"""Triton kernels for speculative decoding, one folder each, without an engine: drafts of the suffix index."""
