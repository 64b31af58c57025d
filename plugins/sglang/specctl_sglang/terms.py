"""SGLang's words and numbers, turned into the contract's and back. Nowhere else."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

from specctl.contract.setting import Setting

__all__ = [
    "DFLASH",
    "OFF",
    "PEAGLE",
    "STEERED",
    "SUFFIX",
    "Shape",
    "chain",
    "checked_candidates",
    "checked_tree",
    "checked_trees",
    "default_candidates",
    "default_trees",
    "drafts_of",
    "method_of",
    "setting_of",
    "trees_without_passes",
    "width_of",
    "widths_by_tree",
]

SUFFIX = "SPECCTL_SUFFIX"
PEAGLE = "SPECCTL_PEAGLE"
"""Names for ``--speculative-algorithm``."""
DFLASH = "DFLASH"
STEERED = ("NGRAM", "EAGLE", "EAGLE3", "NEXTN", "STANDALONE", DFLASH)
"""SGLang's own algorithms that get a table where it is asked for."""
Shape = tuple[int, int, int]
"""Of a step's drafts: speculative_num_steps, speculative_eagle_topk and speculative_num_draft_tokens. The
contract calls them num_speculative_tokens (a draft's depth), tree_topk and verify_width_tokens."""
OFF: Shape = (0, 1, 1)
_ON_A_DEVICE = (0, 1, 2, 3, 5, 7, 11, 15, 23, 31, 47, 63)


def width_of(num_speculative_tokens: int) -> int:
    """speculative_num_draft_tokens of a chain, which counts the target's own last token too."""
    return num_speculative_tokens + 1


def drafts_of(speculative_num_draft_tokens: int) -> int:
    """Nodes of a draft; of a chain that is num_speculative_tokens."""
    return speculative_num_draft_tokens - 1


def chain(num_speculative_tokens: int) -> Shape:
    return num_speculative_tokens, 1, width_of(num_speculative_tokens)


def setting_of(shape: Shape) -> Setting:
    """As the contract lists it: the width is named where it is not depth + 1."""
    depth, topk, width = shape
    named = None if width == width_of(depth) else width
    return Setting(num_speculative_tokens=depth, tree_topk=topk, verify_width_tokens=named)


def widths_by_tree(shapes: Iterable[Shape]) -> dict[tuple[int, int], int]:
    """The width of a setting that names none, by depth and branches: depth + 1 where that was prepared, else
    the largest."""
    found: dict[tuple[int, int], int] = {}
    for depth, topk, width in sorted(shapes):
        if found.get((depth, topk)) != width_of(depth):
            found[depth, topk] = width
    return found


def method_of(speculative_algorithm: str) -> str:
    """The contract's name of a method: specctl_suffix, ngram, eagle3."""
    return speculative_algorithm.lower()


def default_candidates(full: int, has_graphs: bool) -> tuple[int, ...]:
    """Numbers of drafted tokens that are prepared where the user names none: each where nothing is captured
    for it, else fewer the larger they are, because each takes time at start and memory."""
    if not has_graphs:
        return tuple(range(full + 1))
    return (*(number for number in _ON_A_DEVICE if number < full), full)


def checked_candidates(asked: Iterable[int], full: int) -> tuple[int, ...]:
    """Sorted. Raises ValueError."""
    numbers = set(asked)
    over = sorted(number for number in numbers if number > full)
    if over:
        raise ValueError(
            f"candidates: expected at most {full} (--speculative-num-draft-tokens {width_of(full)} less the "
            f"target's own token), got {', '.join(map(str, over))}"
        )
    return tuple(sorted(numbers))


def _nodes_of_passes(depth: int, topk: int) -> int:
    """That a draft model of so many passes makes: topk in the first one, its square in each later one."""
    return topk + (depth - 1) * topk**2 if depth else 0


def _nodes_of_branches(depth: int, topk: int) -> int:
    """Of a tree with all its branches."""
    return sum(topk**level for level in range(1, depth + 1))


def checked_tree(shape: Shape) -> None:
    """Raises ValueError for a server whose own trees cannot hold the drafts that it was started with: SGLang
    would end at the first of them."""
    depth, topk, width = shape
    most = _nodes_of_passes(depth, topk)
    if topk > 1 and drafts_of(width) > most:
        raise ValueError(
            f"--speculative-num-draft-tokens: expected at most {width_of(most)}, as trees of "
            f"--speculative-num-steps {depth} and --speculative-eagle-topk {topk} have {most} nodes, "
            f"got {width}"
        )


def default_trees(start: Shape, has_graphs: bool) -> tuple[Shape, ...]:
    """Trees of a draft model that are prepared beside the server's own where the user names none: shallower,
    with fewer branches and narrower ones. Few where each takes graphs of its own."""
    depth, topk, width = start
    half_depth, half_topk, half_width = (depth + 1) // 2, (topk + 1) // 2, width // 2 + 1
    if has_graphs:
        wanted = [(depth, topk, half_width), (depth, half_topk, half_width), (half_depth, topk, half_width)]
    else:
        wanted = [*product((depth, half_depth), (topk, half_topk), (width, half_width)), (1, topk, topk + 1)]
    return tuple(sorted({one for one in wanted if one != start and one[2] <= width and _is_useful(one)}))


def _is_useful(shape: Shape) -> bool:
    """Whether it has a branch beside a chain of its depth, and nodes for its width."""
    depth, topk, width = shape
    return topk > 1 and depth < drafts_of(width) <= _nodes_of_passes(depth, topk)


def trees_without_passes(widths: Iterable[int], topk: int) -> tuple[Shape, ...]:
    """Trees that are found and not computed, so that nothing but their width needs to be prepared: as deep as
    they have nodes, or half of it."""
    found = set()
    for width, branches in product(widths, {2, topk} if topk > 1 else ()):
        nodes = drafts_of(width)
        found |= {
            (depth, branches, width)
            for depth in (nodes, nodes // 2)
            if nodes > 1 and depth and _nodes_of_branches(depth, branches) >= nodes
        }
    return tuple(sorted(found))


def checked_trees(asked: Iterable[Shape], start: Shape, *, has_passes: bool) -> tuple[Shape, ...]:
    """Trees to prepare as the user names them. Raises ValueError.

    start: the server's own; it sizes the draft model's KV cache, and the scheduler's rows.
    """
    nodes_of = _nodes_of_passes if has_passes else _nodes_of_branches
    for shape in asked:
        depth, topk, width = shape
        most_nodes = nodes_of(depth, topk)
        limits = {
            f"at least 2 branches, got {topk}": topk >= 2,
            f"at most {start[1]} branches (--speculative-eagle-topk), got {topk}": topk <= start[1],
            f"at most {start[2]} positions (--speculative-num-draft-tokens), got {width}": width <= start[2],
            f"at least {width_of(depth)} positions for a depth of {depth}, got {width}": width > depth,
            f"at most {width_of(most_nodes)} positions, as such trees have {most_nodes} nodes, got {width}": (
                drafts_of(width) <= most_nodes
            ),
        }
        wrong = next((words for words, holds in limits.items() if not holds), None)
        if wrong is not None:
            raise ValueError(f"trees: [{depth}, {topk}, {width}]: expected {wrong}")
    return tuple(sorted(set(asked)))
