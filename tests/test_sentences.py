"""The sentence tracker against a plain reading of the same tokens."""

from __future__ import annotations

import pytest
import torch

from skipkv.sentences import NO_SENTENCE, SentenceTracker

HIDDEN, TAU = 6, 0.6


def plain_penalties(tokens: list[int], states: torch.Tensor, delimiter: int, centred: bool) -> list[float]:
    """The penalty of each token, by the formulas: means of closed sentences, cosine to every later one."""
    closed, start = [], 0
    for end, token in enumerate(tokens):
        if token == delimiter:
            closed.append((start, end + 1))
            start = end + 1
    means = [torch.nn.functional.normalize(states[a:b].mean(dim=0), dim=0) for a, b in closed]
    if centred:
        middle = torch.stack(means).mean(dim=0)
        means = [torch.nn.functional.normalize(mean - middle, dim=0) for mean in means]
    penalties = [0.0] * len(tokens)
    for i, (a, b) in enumerate(closed):
        similar = [float(means[i] @ later) for later in means[i + 1 :]]
        penalties[a:b] = [max((s for s in similar if s > TAU), default=0.0)] * (b - a)
    return penalties


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("chunk", [1, 5, 40])
def test_penalties_match_the_formulas(chunk: int, centred: bool) -> None:
    source = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 5, (3, 40), generator=source)
    states = torch.randn(3, 40, HIDDEN, generator=source) + torch.randn(3, 1, HIDDEN, generator=source)
    tracker = SentenceTracker(3, HIDDEN, [4], torch.device("cpu"), TAU, centred)
    tracker.reserve(50)
    rows = torch.arange(3)
    for start in range(0, 40, chunk):
        piece = slice(start, start + chunk)
        positions = torch.arange(40)[piece].expand(3, -1)
        tracker.add(
            rows, tokens[:, piece], positions, states[:, piece], torch.ones_like(tokens[:, piece], dtype=torch.bool)
        )
    tracker.judge(rows)
    found = tracker.penalty(rows, torch.arange(40).expand(1, 3, 1, 40))[0, :, 0]
    assert (found > 0).any()
    for row in range(3):
        expected = torch.tensor(plain_penalties(tokens[row].tolist(), states[row], 4, centred))
        torch.testing.assert_close(found[row], expected)


def test_padding_and_the_prompt_belong_to_no_sentence() -> None:
    tracker = SentenceTracker(1, HIDDEN, [4], torch.device("cpu"), TAU)
    tracker.reserve(10)
    real = torch.tensor([[False, True, True]])
    tracker.add(torch.tensor([0]), torch.tensor([[4, 2, 4]]), torch.tensor([[0, 5, 6]]), torch.ones(1, 3, HIDDEN), real)
    assert tracker.closed.tolist() == [1]
    assert tracker.sentence_of[0, :7].tolist() == [NO_SENTENCE] * 5 + [0, 0]
    tracker.clear(torch.tensor([0]))
    assert tracker.closed.tolist() == [0] and (tracker.sums == 0).all()


def test_a_sentence_that_left_the_ring_keeps_its_penalty() -> None:
    tracker = SentenceTracker(1, HIDDEN, [4], torch.device("cpu"), TAU, ring=4)
    tracker.reserve(20)
    row, real = torch.tensor([0]), torch.ones(1, 1, dtype=torch.bool)
    axes = torch.eye(HIDDEN)
    for position, axis in enumerate([0, 0, 1, 2, 3, 4, 5]):
        tracker.add(row, torch.tensor([[4]]), torch.tensor([[position]]), axes[axis].view(1, 1, -1), real)
        tracker.judge(row)
    assert tracker.penalty(row, torch.arange(7).view(1, 1, 1, 7))[0, 0, 0].tolist() == [1.0, 0, 0, 0, 0, 0, 0]
