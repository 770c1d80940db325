"""Labels, the controller, and the vector's file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import DELIMITERS, SHARED, random_prompts, tiny_model
from safetensors.torch import save_file
from sklearn.metrics import f1_score

import skipkv
from skipkv.steering.activations import POSITIONS, Activations, Trace, record
from skipkv.steering.clustering import direction
from skipkv.steering.controller import AdaptiveRows, LabelledRows, ThinkTokens
from skipkv.steering.formats import write_gguf
from skipkv.steering.functions import FUNCTIONS, NON_EXECUTION, SENTENCES, fitted, functions_of, labeller
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
    vector = SteeringVector(
        torch.randn(8), 2, TOKENS, -1.25, 0.03, 0.5, notes={"model": "tiny"}, others={"a - b": torch.ones(8)}
    )
    vector.save(tmp_path / "v.safetensors")
    loaded = load_vector(tmp_path / "v.safetensors")
    assert torch.equal(loaded.vector, vector.vector) and torch.equal(loaded.others["a - b"], torch.ones(8))
    assert loaded.max_shift == 0.5
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
        ("So the sum is 12.", "conclude"),
        ("Wait, let me check.", "verify"),
        ("7 + 5 = 12 again.", "calc"),
        ("1. Add them up.", "calc"),
        ("Therefore, the answer is \\boxed{12}.", "conclude"),
    ]
    covered = set()
    for sentence in sentences:
        assert text[sentence.start : sentence.end] == sentence.text
        covered.update(range(sentence.start, sentence.end))
    assert all(character.isspace() for i, character in enumerate(text) if i not in covered)
    assert skipkv.functions_of([s.text for s in sentences]) == [s.function for s in sentences]


@pytest.mark.parametrize(("method", "clusters"), [("kmeans", None), ("kmeans", 6), ("gmm", 2), ("gmm", None)])
def test_the_direction_points_from_execution_to_non_execution(method: str, clusters: int | None) -> None:
    source = np.random.default_rng(0)
    axis = source.normal(size=12)
    functions = ["calc"] * 60 + ["verify"] * 40 + ["conclude"] * 20
    states = source.normal(size=(1, 120, 12)) + 6 * axis * np.array([f == "verify" for f in functions])[None, :, None]
    found = direction(Activations((4,), states, functions, np.arange(120) % 6), 0, 0, method, clusters)
    cosine = found.vector @ axis / np.linalg.norm(found.vector) / np.linalg.norm(axis)
    assert cosine > 0.98 and found.auc > 0.99
    with pytest.raises(skipkv.BadInput, match="both kinds"):
        direction(Activations((4,), states, ["calc"] * 120, np.arange(120) % 6), 0, seed=0)


def test_no_shift_is_longer_than_its_share_of_the_state() -> None:
    steered = AdaptiveRows(torch.full((5,), 2.0), -1.0, 0.0, TOKENS, 2, max_shift=0.1)
    steered.read(torch.arange(2), torch.tensor([[OPEN, END], [OPEN, END]]), torch.ones(2, 2, dtype=torch.bool))
    hidden = torch.stack([torch.randn(2, 5), 1000 * torch.randn(2, 5)])
    shift = (steered.shift(hidden) - hidden)[:, 1].norm(dim=-1)
    expected = torch.minimum(0.1 * hidden[:, 1].norm(dim=-1), torch.tensor(2.0 * 5**0.5))
    torch.testing.assert_close(shift, expected, rtol=1e-3, atol=1e-4)


def test_the_labeller_counts_what_it_calls_a_recheck() -> None:
    def has_mark(sentences: list[list[int]]) -> list[bool]:
        return [MARK in sentence for sentence in sentences]

    source = torch.Generator().manual_seed(5)
    choices = torch.tensor([END, END, MARK, OPEN, CLOSE, 1, 2])
    tokens = choices[torch.randint(0, len(choices), (4, 60), generator=source)]
    tokens[:, 0] = OPEN
    rows, real = torch.arange(4), torch.ones(4, 1, dtype=torch.bool)
    by_token = AdaptiveRows(torch.ones(5), -1.0, 0.1, TOKENS, 4)
    by_label = LabelledRows(has_mark, torch.ones(5), -1.0, 0.1, TOKENS, 4)
    for column in tokens.T:
        for steered in (by_token, by_label):
            steered.read(rows, column[:, None], real)
        assert torch.equal(by_token.rechecks, by_label.rechecks)
    assert by_label.rechecks.sum() > 0


@pytest.mark.parametrize("position", POSITIONS)
def test_states_do_not_depend_on_the_batch(position: str, reasoner: tuple[Any, Any]) -> None:
    model, tokenizer = reasoner
    thinking = "Look up Ann: 7, so Ann = 7.\nWait, let me read Ann: 7 again.\nSo the answer is 7.\n"
    traces = [Trace(f"<|user|>- Ann: 7.\n{'- Ben: 9.' * count}", thinking * count) for count in (3, 1, 2)]
    together = record(model, tokenizer, traces, [1, 3], position, batch_size=3)
    for index, trace in enumerate(traces):
        alone, mine = record(model, tokenizer, [trace], [1, 3], position), together.traces == index
        np.testing.assert_allclose(alone.states, together.states[:, mine], atol=2e-4)
        assert alone.functions == [f for f, own in zip(together.functions, mine, strict=True) if own]
        assert alone.functions == ["calc", "verify", "conclude"] * (len(alone.functions) // 3)


def test_the_end_is_the_layers_input_at_the_delimiter(reasoner: tuple[Any, Any]) -> None:
    model, tokenizer = reasoner
    trace = Trace("<|user|>- Ann: 7.\n", "Look up Ann: 7, so Ann = 7.\nSo the answer is 7.\n")
    ids = tokenizer(trace.prompt + trace.thinking, return_tensors="pt", add_special_tokens=False)["input_ids"]
    hidden = model(ids, output_hidden_states=True).hidden_states
    delimiter = tokenizer.convert_tokens_to_ids(".\n")
    ends = [place for place in (ids[0] == delimiter).nonzero()[:, 0].tolist() if place > 5]
    found = record(model, tokenizer, [trace], [0, 2], "end")
    for place, layer in enumerate((0, 2)):
        np.testing.assert_allclose(found.states[place], hidden[layer][0, ends].detach(), atol=1e-5)


def test_other_tools_vectors_load(tmp_path: Path, reasoner: tuple[Any, Any]) -> None:
    tokenizer, direction_found = reasoner[1], torch.arange(128.0)
    torch.save(direction_found, tmp_path / "v.pt")
    save_file(
        {"layer_activations.1": direction_found, "layer_activations.2": direction_found + 1}, tmp_path / "v.safetensors"
    )
    loaded = load_vector(tmp_path / "v.pt", tokenizer=tokenizer, model="deepseek-ai/DeepSeek-R1-Distill-Qwen-7B")
    assert (loaded.layer, loaded.alpha0, loaded.gamma) == (20, -1.25, 0.02)
    assert torch.equal(loaded.vector, direction_found)
    assert torch.equal(
        load_vector(tmp_path / "v.safetensors", tokenizer=tokenizer, layer=3).vector, direction_found + 1
    )
    with pytest.raises(skipkv.BadInput, match="layers: 2, 3"):
        load_vector(tmp_path / "v.safetensors", tokenizer=tokenizer)
    with pytest.raises(skipkv.BadInput, match=r"--vector-layer"):
        load_vector(tmp_path / "v.pt", tokenizer=tokenizer, model="unheard-of")
    torch.save({"not": ["a", "tensor"]}, tmp_path / "w.pt")
    with pytest.raises(skipkv.BadInput, match="one tensor"):
        load_vector(tmp_path / "w.pt", tokenizer=tokenizer)


def test_a_pickle_with_code_in_it_is_refused(tmp_path: Path, reasoner: tuple[Any, Any]) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "exploded",))

    torch.save(Bomb(), tmp_path / "bomb.pt")
    with pytest.raises(skipkv.BadInput, match=r"bomb\.pt"):
        load_vector(tmp_path / "bomb.pt", tokenizer=reasoner[1], layer=2)
    assert not (tmp_path / "exploded").exists()


def test_a_gguf_control_vector_comes_back(tmp_path: Path, reasoner: tuple[Any, Any]) -> None:
    pytest.importorskip("gguf")
    write_gguf(tmp_path / "v.gguf", torch.arange(128.0), 3, "qwen2")
    loaded = load_vector(tmp_path / "v.gguf", tokenizer=reasoner[1])
    assert loaded.layer == 3 and torch.equal(loaded.vector, torch.arange(128.0))
    with pytest.raises(skipkv.BadInput, match="layer 2 on"):
        write_gguf(tmp_path / "w.gguf", torch.ones(4), 1, "qwen2")


def test_own_labels_and_keywords(tmp_path: Path) -> None:
    sentences = ["Wait, is it 7?", "So 3 + 4 = 7."]
    assert functions_of(sentences, labeller("keywords")) == ["verify", "calc"]
    path = tmp_path / "labels.jsonl"
    rows = [{"text": f"alpha {n}", "function": "calc"} for n in range(9)]
    path.write_text(
        "".join(json.dumps(row) + "\n" for row in [*rows, *({"text": "omega omega", "function": "verify"},) * 9])
    )
    assert functions_of(["omega omega", "alpha"], labeller(labels=path)) == ["verify", "calc"]
    path.write_text('{"text": "alpha", "function": "guess"}\n')
    fitted.cache_clear()
    with pytest.raises(skipkv.BadInput, match="line 1"):
        labeller(labels=path)


def test_the_labeller_knows_patterns_that_it_was_not_fitted_on(tmp_path: Path) -> None:
    rows = [json.loads(line) for line in SENTENCES.read_text().splitlines()]
    assert len(rows) >= 1500 and {row["function"] for row in rows} == set(FUNCTIONS)
    kept = [row for row in rows if row["pattern"] % 5]
    (tmp_path / "kept.jsonl").write_text("".join(json.dumps(row) + "\n" for row in kept))
    aside = [row for row in rows if row["pattern"] % 5 == 0]
    found = functions_of([row["text"] for row in aside], labeller(labels=tmp_path / "kept.jsonl"))
    nonexec = [[name in NON_EXECUTION for name in names] for names in (found, [row["function"] for row in aside])]
    assert f1_score(nonexec[1], nonexec[0]) > 0.7  # measured: 0.735


@pytest.mark.skipif(not SHARED.exists(), reason="the traces are not here")
def test_the_labeller_on_real_traces() -> None:
    texts, nonexec = [], []
    for path in sorted((SHARED / "data" / "r1_traces").glob("*.jsonl")):
        for line in path.read_text().splitlines():
            for segment in json.loads(line)["segments"]:
                texts.append(segment["text"])
                nonexec.append(segment["label"] in ("uncertainty-estimation", "backtracking", "example-testing"))
    found = [function in NON_EXECUTION for function in functions_of(texts)]
    words = [function in NON_EXECUTION for function in functions_of(texts, labeller("keywords"))]
    # Measured: 0.776 and 0.670; the paper's three words 0.671 and 0.476.
    assert f1_score(nonexec, found, average="macro") > 0.765 and f1_score(nonexec, found) > 0.66
    assert f1_score(nonexec, found) > f1_score(nonexec, words) + 0.15
