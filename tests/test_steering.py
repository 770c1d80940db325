"""Labels, the controller, and the vector's file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import DELIMITERS, random_prompts, tiny_model

import skipkv
from skipkv.steering.activations import Activations
from skipkv.steering.clustering import direction
from skipkv.steering.controller import AdaptiveRows, ThinkTokens
from skipkv.steering.vectors import SteeringVector, load_vector

END, MARK, OPEN, CLOSE = 7, 20, 30, 31
TOKENS = ThinkTokens([END], [MARK], [OPEN], [CLOSE])


def plain_coefficients(tokens: list[int], alpha0: float, gamma: float) -> list[float]:
    """The coefficient after each token, read one by one (METHOD: alpha0 - gamma * non-execution sentences so far)."""
    thinking, marked, rechecks, found = False, False, 0, []
    for token in tokens:
        thinking = (thinking or token == OPEN) and token != CLOSE
        marked |= token == MARK
        steer = token == END and thinking
        if steer:
            rechecks += marked
            marked = False
        found.append(alpha0 - gamma * rechecks if steer else 0.0)
    return found


@pytest.mark.parametrize("prompt", [1, 6, 30])
def test_coefficients_follow_each_row(prompt: int) -> None:
    source = torch.Generator().manual_seed(2)
    choices = torch.tensor([END, END, MARK, OPEN, CLOSE, 1, 2, 3])
    tokens = choices[torch.randint(0, len(choices), (4, 40), generator=source)]
    tokens[:, 0] = OPEN
    rows = torch.arange(4)
    steered = AdaptiveRows(torch.ones(5), -1.0, 0.25, TOKENS, 4)
    steered.read(rows, tokens[:, :prompt], torch.ones(4, prompt, dtype=torch.bool))
    found = [steered.coefficient]
    for column in range(prompt, 40):
        steered.read(rows, tokens[:, column : column + 1], torch.ones(4, 1, dtype=torch.bool))
        found.append(steered.coefficient)
    for row in range(4):
        expected = plain_coefficients(tokens[row].tolist(), -1.0, 0.25)[prompt - 1 :]
        assert torch.stack(found)[:, row].tolist() == expected


def test_only_the_last_token_of_a_steered_row_moves() -> None:
    steered = AdaptiveRows(torch.full((5,), 2.0), -1.0, 0.0, TOKENS, 2)
    steered.read(torch.arange(2), torch.tensor([[OPEN, 1, END], [OPEN, END, 1]]), torch.ones(2, 3, dtype=torch.bool))
    hidden = torch.randn(2, 3, 5)
    moved = steered.shift(hidden)
    assert torch.equal(moved[0, 2], hidden[0, 2] - 2.0)
    assert torch.equal(moved[0, :2], hidden[0, :2]) and torch.equal(moved[1], hidden[1])


def test_steering_does_not_depend_on_the_batch() -> None:
    model = tiny_model("Qwen2")
    vector = SteeringVector(
        torch.randn(32, generator=torch.Generator().manual_seed(0)) * 3,
        1,
        ThinkTokens(DELIMITERS, [MARK, 21, 22], [], []),
        -1.0,
        0.1,
    )
    prompts = random_prompts((5, 40, 17, 33))

    def written(batch_size: int, steering: SteeringVector | None) -> dict[int, list[int]]:
        results = skipkv.generate(
            model,
            prompts,
            policy=skipkv.SkipKV(budget=24),
            steering=steering,
            max_new_tokens=50,
            batch_size=batch_size,
            delimiter_ids=DELIMITERS,
            eos_token_id=3,
        )
        return {result.index: result.tokens for result in results}

    alone = written(1, vector)
    assert written(4, vector) == alone != written(1, None)
    assert written(3, vector.with_strength(0.0, 0.0)) == written(1, None)


def test_a_vector_file_gives_back_the_vector(tmp_path: Path) -> None:
    vector = SteeringVector(torch.randn(8), 2, TOKENS, -1.25, 0.03, {"model": "tiny"})
    vector.save(tmp_path / "v.safetensors")
    loaded = load_vector(tmp_path / "v.safetensors")
    assert torch.equal(loaded.vector, vector.vector)
    assert (loaded.layer, loaded.alpha0, loaded.gamma, loaded.tokens, loaded.notes) == (
        2,
        -1.25,
        0.03,
        TOKENS,
        {"model": "tiny"},
    )


def test_a_vector_of_another_width_or_layer_is_refused(tmp_path: Path) -> None:
    model, policy = tiny_model("Llama"), skipkv.RKV(budget=24)
    for vector, said in (
        (SteeringVector(torch.ones(16), 1, TOKENS), "16 numbers"),
        (SteeringVector(torch.ones(32), 9, TOKENS), "layers 0 to 2"),
    ):
        with pytest.raises(skipkv.BadInput, match=said), skipkv.patch(model, policy, steering=vector):
            pass
    (tmp_path / "broken.safetensors").write_bytes(b"no")
    with pytest.raises(skipkv.BadInput, match="not a steering vector"):
        load_vector(tmp_path / "broken.safetensors")


def test_labels_cover_all_text_and_know_the_functions() -> None:
    text = (
        "First, 3.5 times 2 is 7, e.g. by doubling. So the sum is 12.\n\n"
        "Wait, let me check. 7 + 5 = 12 again.\n1. Add them up.\nTherefore, the answer is \\boxed{12}."
    )
    sentences = skipkv.label_sentences(text)
    assert [(s.text, s.function) for s in sentences] == [
        ("First, 3.5 times 2 is 7, e.g. by doubling.", "calc"),
        ("So the sum is 12.", "calc"),
        ("Wait, let me check.", "verify"),
        ("7 + 5 = 12 again.", "verify"),
        ("1. Add them up.", "calc"),
        ("Therefore, the answer is \\boxed{12}.", "conclude"),
    ]
    covered = set()
    for sentence in sentences:
        assert text[sentence.start : sentence.end] == sentence.text
        covered.update(range(sentence.start, sentence.end))
    assert all(character.isspace() for i, character in enumerate(text) if i not in covered)
    assert skipkv.functions_of([s.text for s in sentences]) == [s.function for s in sentences]


def test_the_direction_points_from_execution_to_non_execution() -> None:
    source = np.random.default_rng(0)
    axis = source.normal(size=12)
    functions = ["calc"] * 60 + ["verify"] * 40 + ["conclude"] * 20
    states = source.normal(size=(1, 120, 12)) + 6 * axis * np.array([f == "verify" for f in functions])[None, :, None]
    found = direction(Activations(states, functions, np.arange(120) % 6), 0, seed=0)
    cosine = found.vector @ axis / np.linalg.norm(found.vector) / np.linalg.norm(axis)
    assert cosine > 0.98 and found.auc > 0.99
    with pytest.raises(skipkv.BadInput, match="both kinds"):
        direction(Activations(states, ["calc"] * 120, np.arange(120) % 6), 0, seed=0)
