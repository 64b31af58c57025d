"""Decode-batch buckets, the same in the engine's telemetry and in the daemon's tables."""

from __future__ import annotations

from bisect import bisect_left

__all__ = ["DecodeBatchBuckets"]

_SMALL = (1, 2, 3, 4, 6)


class DecodeBatchBuckets:
    """Buckets of the number of decoding requests: 1, 2, 3, 4, 5-6, 7-8, 9-12, 13-16, 17-24, ...

    The last bucket ends at ``max_decode_batch``.
    """

    def __init__(self, max_decode_batch: int) -> None:
        if max_decode_batch < 1:
            raise ValueError(f"max_decode_batch: expected at least 1, got {max_decode_batch}")
        uppers = [u for u in _SMALL if u < max_decode_batch]
        size = 8
        while size < max_decode_batch:
            uppers.append(size)
            if size * 3 // 2 < max_decode_batch:
                uppers.append(size * 3 // 2)
            size *= 2
        uppers.append(max_decode_batch)
        self.uppers: tuple[int, ...] = tuple(uppers)

    def __len__(self) -> int:
        return len(self.uppers)

    def index(self, decode_batch: int) -> int:
        """Bucket of a decode batch; a batch over the maximum falls into the last bucket."""
        return min(bisect_left(self.uppers, decode_batch), len(self.uppers) - 1)

    def bounds(self, index: int) -> tuple[int, int]:
        """First and last decode batch of a bucket, both inclusive."""
        lower = 1 if index == 0 else self.uppers[index - 1] + 1
        return lower, self.uppers[index]
