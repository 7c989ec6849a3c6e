"""The plain classifier: DENN's network trained on binary cross-entropy alone, without neighbours."""

from __future__ import annotations

from denn.encoders.transformer import TransformerEncoder
from denn.methods.classifier import Classifier, ClassifierParameters
from denn.training.neural import Neural


class Bert(Neural):
    """The row BERT of the paper's tables: Eq. 2 and 3."""

    Parameters = ClassifierParameters

    def make(self, encoder: TransformerEncoder, labels: int) -> Classifier:
        """Add a linear map to the encoder."""
        return Classifier(encoder, labels, self.parameters.dropout)
