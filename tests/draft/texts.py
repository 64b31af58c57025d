"""Texts for the tests of frozen corpora."""

from __future__ import annotations

import random

import numpy as np

from specctl.draft.frozen_corpus import FrozenCorpus, documents_of

RUNGS = (1, 2, 6)
Texts = list[list[int]]


def arrays(texts: Texts) -> list[np.ndarray]:
    return [np.array(text, np.int32) for text in texts]


def texts_of(corpus: FrozenCorpus) -> Texts:
    return [document.tolist() for document in documents_of(corpus)]


def random_texts(documents: int, seed: int = 1) -> Texts:
    generator = random.Random(seed)
    return [[generator.randrange(40) for _ in range(generator.randrange(1, 60))] for _ in range(documents)]


TEXTS = random_texts(30)
