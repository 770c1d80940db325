"""Draws follow the distribution that they should."""

from __future__ import annotations

import torch

from skipkv.sampling import Sampling, uniform


def test_draws_follow_the_softmax() -> None:
    logits = torch.tensor([0.1, 1.0, -0.7, 2.0])
    rows = 20000
    drawn = Sampling(temperature=0.7, seed=3).draw(
        logits.expand(rows, -1), torch.arange(rows), torch.zeros(rows).long()
    )
    share = drawn.bincount(minlength=4) / rows
    torch.testing.assert_close(share, (logits / 0.7).softmax(dim=0), atol=0.012, rtol=0)


def test_top_p_and_top_k_leave_out_the_tail() -> None:
    logits = torch.tensor([[3.0, 2.0, 1.0, 0.0]])
    assert torch.isfinite(Sampling(1.0, top_p=0.7).restrict(logits)).tolist() == [[True, True, False, False]]
    assert torch.isfinite(Sampling(1.0, top_k=3).restrict(logits)).tolist() == [[True, True, True, False]]


def test_uniform_numbers_are_uniform_and_the_requests_own() -> None:
    numbers = uniform(0, torch.arange(50), torch.full((50,), 7), 1000)
    assert ((numbers > 0) & (numbers < 1)).all()
    assert abs(numbers.mean().item() - 0.5) < 0.005
    assert torch.equal(uniform(0, torch.tensor([9]), torch.tensor([7]), 1000)[0], numbers[9])
