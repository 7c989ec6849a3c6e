"""Seq2Seq (Nam et al., 2017): labels as a sequence in a fixed order, written by a GRU decoder with attention."""

from __future__ import annotations

from denn.training.neural import Neural
from denn_bench.encoders.words import WordEncoder
from denn_bench.systems.sequences import SequenceNetwork, SequenceParameters


class Seq2Seq(Neural):
    """Maximises the probability of a document's whole label set, as a product over its labels in order."""

    Parameters = SequenceParameters

    def make(self, encoder: WordEncoder, labels: int) -> SequenceNetwork:
        """Put GRU layers and a GRU decoder on the words."""
        return SequenceNetwork(encoder, labels, self.parameters, "gru")
