"""Monotonic counters of an engine's request-steps by traffic class, on a sample of the steps.

The engine holds one number for each request, its class's; a step is counted by builtins over those numbers
(class + tokens is one integer), because a step is on the clock. It still takes 0.2 us a request, so steps are
counted at a pace: some dozens a second tell the acceptance as well as all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import add

from specctl.engine.request_classes import CLASSES_MAX, OTHER, ClassKey, TrafficClass
from specctl.engine.step_counters import at_least, reached_and_accepted

__all__ = ["ClassCounters"]

# A class gives its place away only after a rest longer than any polling interval of a daemon, so that none
# can vanish and come back between two polls.
IDLE_S = 60.0
_OTHER_NUMBER = 0
# Seconds between two counted steps: 20 of them a second with one request, 7 with 256, which is 1,700
# request-steps. A server with longer steps, such as a CPU, counts each.
PACE_S = 0.05
PACE_S_PER_REQUEST = 0.0004


@dataclass(slots=True)
class _Outcomes:
    """By class number + tokens, of the steps under one num_speculative_tokens."""

    drafted: Counter[int] = field(default_factory=Counter)
    accepted: Counter[int] = field(default_factory=Counter)


class ClassCounters:
    """At most ``CLASSES_MAX`` classes and ``OTHER``. Used from one thread."""

    def __init__(self, num_speculative_tokens_max: int) -> None:
        self._stride = num_speculative_tokens_max + 1
        self._numbers: dict[ClassKey, int] = {}
        self._seen_s: dict[int, float] = {}
        self._next = self._stride
        self._outcomes: dict[int, _Outcomes] = {}
        self._members: Mapping[int, int] = {}
        self.due_s = float("-inf")
        """The first step that ends then or later is the next one to be counted."""

    def number_of(self, key: ClassKey, now_s: float) -> int:
        """What a request of this class is counted under. That of ``OTHER`` when no class can make room."""
        number = self._numbers.get(key)
        if number is None:
            if len(self._numbers) >= CLASSES_MAX and not self._made_room(now_s):
                return _OTHER_NUMBER
            # Never used again: a request that outlives its class must not count for the next one.
            number = self._numbers[key] = self._next
            self._next += self._stride
        self._seen_s[number] = now_s
        return number

    def add(
        self,
        num_speculative_tokens: int,
        classes: Sequence[int],
        drafted: Sequence[int],
        accepted: Sequence[int],
        now_s: float,
    ) -> None:
        """Count a step: one class number, drafted and accepted tokens for each of its decoding requests, of
        which there is at least one."""
        outcomes = self._outcomes.get(num_speculative_tokens)
        if outcomes is None:
            outcomes = self._outcomes[num_speculative_tokens] = _Outcomes()
        outcomes.accepted.update(map(add, classes, accepted))
        self._members = Counter(classes)
        if drafted.count(drafted[0]) == len(drafted):
            for number, members in self._members.items():
                outcomes.drafted[number + drafted[0]] += members
        else:
            outcomes.drafted.update(map(add, classes, drafted))
        for number in self._members.keys() & self._seen_s.keys():
            self._seen_s[number] = now_s
        self.due_s = now_s + PACE_S + PACE_S_PER_REQUEST * len(classes)

    def snapshot(self, *, is_idle: bool) -> tuple[TrafficClass, ...]:
        """``is_idle``: no request is running, whatever the last counted step held."""
        members = {} if is_idle else self._members
        keys = {_OTHER_NUMBER: OTHER, **{number: key for key, number in self._numbers.items()}}
        drafted = self._histograms(keys, is_drafted=True)
        accepted = self._histograms(keys, is_drafted=False)
        return tuple(
            self._message(key, members.get(number, 0), drafted.get(number, {}), accepted[number])
            for number, key in keys.items()
            if number in accepted
        )

    def _made_room(self, now_s: float) -> bool:
        number = min(self._numbers.values(), key=self._seen_s.__getitem__)
        if now_s - self._seen_s[number] < IDLE_S:
            return False
        self._numbers = {key: other for key, other in self._numbers.items() if other != number}
        del self._seen_s[number]
        for outcomes in self._outcomes.values():
            for tokens in range(self._stride):
                outcomes.drafted.pop(number + tokens, None)
                outcomes.accepted.pop(number + tokens, None)
        return True

    def _histograms(
        self, keys: Mapping[int, ClassKey], *, is_drafted: bool
    ) -> dict[int, dict[int, list[int]]]:
        """[class][num_speculative_tokens][tokens]; what has lost its class is other."""
        found: dict[int, dict[int, list[int]]] = {}
        for setting, outcomes in self._outcomes.items():
            for code, times in (outcomes.drafted if is_drafted else outcomes.accepted).items():
                number, tokens = code - code % self._stride, code % self._stride
                of_class = found.setdefault(number if number in keys else _OTHER_NUMBER, {})
                of_class.setdefault(setting, [0] * self._stride)[tokens] += times
        return found

    def _message(
        self,
        key: ClassKey,
        decoding: int,
        drafted: Mapping[int, Sequence[int]],
        accepted: Mapping[int, Sequence[int]],
    ) -> TrafficClass:
        positions = range(self._stride - 1)
        steps = {setting: sum(histogram) for setting, histogram in accepted.items()}
        reached_at, accepted_at = reached_and_accepted(accepted, self._stride - 1)
        drafts = [at_least(histogram) for histogram in drafted.values()]
        return TrafficClass(
            namespace=key.namespace,
            kind=key.kind,
            context_to_tokens=key.context_to_tokens,
            decoding=decoding,
            request_steps=sum(steps.values()),
            watched_at=tuple(sum(n for setting, n in steps.items() if setting > j) for j in positions),
            drafted_at=tuple(sum(counts[j] for counts in drafts) for j in positions),
            reached_at=reached_at,
            accepted_at=accepted_at,
        )
