"""Principal components agree with those worked out by hand and with scikit-learn's."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.decomposition import PCA

from denn.core.components import principal_axes


def test_points_on_a_circle_by_hand():
    # In the first two of four dimensions: all the variance, and most of it along the first.
    angles = torch.tensor([0.2, -0.2, torch.pi - 0.2, torch.pi + 0.2])
    points = torch.stack([angles.cos(), angles.sin(), torch.zeros(4), torch.zeros(4)], 1)
    centre, axes, shares = principal_axes(points)
    assert centre.tolist() == pytest.approx([0] * 4, abs=1e-6)
    assert axes.T.flatten().tolist() == pytest.approx([1, 0, 0, 0, 0, 1, 0, 0], abs=1e-6)
    assert float(shares[0]) == pytest.approx(float(points[:, 0].square().mean()))
    assert float(shares.sum()) == pytest.approx(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_they_are_those_of_scikit_learn(dtype):
    points = F.normalize(torch.randn(60, 7, dtype=dtype, generator=torch.Generator().manual_seed(0)), dim=1)
    centre, axes, shares = principal_axes(points)
    expected = PCA(2).fit(points.numpy())
    assert centre.dtype == axes.dtype == dtype
    assert np.allclose(centre, expected.mean_, atol=1e-6)
    assert np.allclose(axes.T.abs(), np.abs(expected.components_), atol=1e-5)
    assert np.allclose(shares, expected.explained_variance_ratio_, atol=1e-5)
    assert (axes.gather(0, axes.abs().argmax(0, keepdim=True)) > 0).all()
    assert torch.allclose(principal_axes(points.flip(0))[1], axes, atol=1e-4), "the map does not flip"


@pytest.mark.parametrize("points, shares", [
    (torch.zeros(0, 3), [0, 0]),
    (torch.ones(1, 3), [0, 0]),
    (torch.tensor([[1.0], [3.0]]), [1, 0]),
    (torch.tensor([[1.0, 1], [2, 2]]), [1, 0]),
])  # fmt: skip
def test_few_points_and_dimensions(points, shares):
    centre, axes, found = principal_axes(points)
    assert centre.shape == points.shape[1:] and axes.shape == (points.shape[1], 2)
    assert found.tolist() == pytest.approx(shares, abs=1e-6)
    assert ((points - centre) @ axes).isfinite().all()
