"""What tests of networks on words share: weights that tell texts apart, and texts laid out."""

import torch


def scattered(network):
    """Draw all weights far from their uniform start, so that labels and sequences differ; without dropout."""
    for weight in network.parameters():
        torch.nn.init.normal_(weight, std=0.7)
    return network.eval()


def packed(network, texts):
    """Tokenize texts and lay all of them out."""
    return network.tokenize(texts).pack(torch.arange(len(texts)))
