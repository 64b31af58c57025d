"""Which of two sources drafts for a request, by what is expected of each."""

from specctl_kernels.draft_choice.launch import HEAD, NONE, SUFFIX, DraftChoice, draft_choice

__all__ = ["HEAD", "NONE", "SUFFIX", "DraftChoice", "draft_choice"]
