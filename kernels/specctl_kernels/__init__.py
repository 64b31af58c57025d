"""Placeholder: kernels that verify drafts will stand here, one folder each. There are none yet."""
