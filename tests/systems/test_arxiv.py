"""Names of arXiv categories: every label of AAPD has its own, and other corpora keep theirs."""

import denn
from denn.types import LabelSpace
from denn.vocabulary import Vocabulary, VocabularyEntry
from denn_bench.arxiv import ARXIV, readable_names


def corpus_of(*labels, vocabulary=None):
    return denn.Corpus(train=[], labels=LabelSpace(labels), vocabulary=vocabulary or Vocabulary())


def test_codes_become_names_and_no_two_are_the_same():
    assert len(ARXIV) == len(set(ARXIV.values())) == 54
    assert readable_names(corpus_of("cs.LG", "cs.it", "quant-ph")) == [
        "machine learning",
        "information theory",
        "quantum physics",
    ]


def test_other_labels_and_named_ones_stay():
    assert readable_names(corpus_of("cs.LG", "sport")) == ["cs.LG", "sport"]
    named = Vocabulary((VocabularyEntry("cs.LG", "learning"),))
    assert readable_names(corpus_of("cs.LG", "cs.AI", vocabulary=named)) == ["learning", "artificial intelligence"]
