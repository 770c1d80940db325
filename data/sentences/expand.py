"""Fills the patterns of patterns.txt from fills.txt and writes sentences.jsonl.

    python data/sentences/expand.py

Its rows are `text`, `function`, and `pattern`, the pattern's number: sentences of one pattern belong together when data
are split.
"""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Sentences drawn from a pattern with slots; one without gives itself. About a quarter of a chain of thought re-checks.
FILLED = {"calc": 8, "conclude": 4, "verify": 2, "transition": 4}


def read_sections(path: Path) -> list[tuple[str, str]]:
    """(section, line), in the order of the file."""
    found, section = [], ""
    for line in path.read_text().splitlines():
        if heading := re.fullmatch(r"\[(\w+)\]", line):
            section = heading[1]
        elif line and not line.startswith("# "):
            found.append((section, line))
    return found


def fill(pattern: str, fills: dict[str, list[str]], rng: random.Random) -> str:
    """One sentence of a pattern: every slot drawn anew."""

    def drawn(slot: re.Match[str]) -> str:
        return str(rng.randint(2, 99)) if slot[1] in "nm" else rng.choice(fills[slot[1]])

    text = re.sub(r"\{(\w+)\}", drawn, pattern).replace("{{", "{").replace("}}", "}")
    return re.sub(r"^(\d\. |- )?([a-z])", lambda start: (start[1] or "") + start[2].upper(), text)


def main() -> None:
    rng, rows, seen = random.Random(0), [], set()
    fills: dict[str, list[str]] = {}
    for slot, text in read_sections(HERE / "fills.txt"):
        fills.setdefault(slot, []).append(text)
    patterns = read_sections(HERE / "patterns.txt")
    for number, (function, pattern) in enumerate(patterns):
        for _ in range(FILLED[function] if "{" in pattern else 1):
            text = fill(pattern, fills, rng)
            if text not in seen:
                seen.add(text)
                rows.append({"text": text, "function": function, "pattern": number})
    (HERE / "sentences.jsonl").write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    print(f"{len(rows)} sentences of {len(patterns)} patterns")


if __name__ == "__main__":
    main()
