"""Drafts of the suffix index on the device."""

from specctl_kernels.suffix_draft.launch import DeviceCorpus, DeviceLessons, SuffixDraftRule, suffix_draft

__all__ = ["DeviceCorpus", "DeviceLessons", "SuffixDraftRule", "suffix_draft"]
