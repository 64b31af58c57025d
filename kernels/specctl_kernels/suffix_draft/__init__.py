"""Drafts of the suffix index on the device."""

from specctl_kernels.suffix_draft.launch import DeviceCorpus, SuffixDraftRule, suffix_draft

__all__ = ["DeviceCorpus", "SuffixDraftRule", "suffix_draft"]
