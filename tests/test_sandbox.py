"""Generated code can do no harm, and its tests are judged right. Skips where no sandbox can be built."""

from __future__ import annotations

import base64
import json
import os
import pickle
import subprocess
import time
import zlib
from pathlib import Path
from typing import Any

import pytest

import skipkv
from skipkv.evaluation import sandbox, tasks
from skipkv.evaluation.sandbox import Limits, Outcome, run_code

pytestmark = pytest.mark.skipif(not sandbox.usable(), reason="no namespaces here")
SHORT = Limits(cpu_seconds=2, wall_seconds=4.0, output=1 << 20)


def processes_of(mark: str) -> str:
    """Command lines of living processes that hold the mark."""
    return subprocess.run(["pgrep", "-fa", mark], capture_output=True, text=True, check=False).stdout


def test_a_program_reads_and_writes() -> None:
    assert run_code("print(int(input()) * 2)", "21\n") == Outcome("ok", "42\n")
    assert run_code("raise SystemExit(3)", "").ended == "error"


@pytest.mark.parametrize(
    ("code", "ended"),
    [
        ("while True: pass", {"timeout", "error"}),
        ("import time; time.sleep(60)", {"timeout"}),
        ("x = bytearray(3 << 30)", {"error"}),
        ("while True: print('x' * 100000)", {"error"}),
        ("open('/box/big', 'wb').write(b'x' * (200 << 20))", {"error"}),
        ("import socket; socket.create_connection(('1.1.1.1', 53), 2)", {"error"}),
    ],
)
def test_greed_is_stopped(code: str, ended: set[str]) -> None:
    started = time.monotonic()
    assert run_code(code, "", SHORT).ended in ended
    assert time.monotonic() - started < 15


def test_a_fork_bomb_leaves_nothing() -> None:
    mark = f"bomb{os.getpid()}"
    code = f"mark = '{mark}'\nimport os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    assert run_code(code, "", SHORT).ended != "ok"
    time.sleep(0.5)
    assert not [line for line in processes_of("/code/main.py").splitlines() if "pgrep" not in line]


def test_a_child_left_behind_dies_too() -> None:
    code = (
        "import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', 'import time; time.sleep(987.25)'])\nprint(1)"
    )
    assert run_code(code, "", SHORT).output == "1\n"
    time.sleep(0.5)
    assert "987.25" not in processes_of("987.25")


def test_the_users_files_and_environment_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("password")
    monkeypatch.setenv("TOKEN", "password")
    code = f"""
import os
for place in ({str(secret)!r}, "/etc/passwd", os.path.expanduser("~root/.bashrc"), {str(Path.home() / ".bashrc")!r}):
    try: print(open(place).read())
    except OSError: print("none")
print(sorted(os.environ), os.listdir("/box"), os.getuid() if os.getuid() else "mapped")
"""
    outcome = run_code(code, "")
    assert outcome.ended == "ok" and outcome.output.count("none\n") == 4
    assert "password" not in outcome.output and "TOKEN" not in outcome.output


def test_the_system_cannot_be_written_to() -> None:
    code = """
import os, sys
for place in ("/usr/x", "/code/main.py", "/bin/x", sys.prefix + "/x"):
    try: open(place, "w"); print("wrote", place)
    except OSError: pass
try: os.system("mount -o remount,rw /usr 2>/dev/null") and print("no mount")
except OSError: pass
"""
    assert "wrote" not in run_code(code, "").output


def test_the_parent_cannot_be_killed() -> None:
    pids = f"({os.getpid()}, {os.getppid()}, -1)"
    code = f"import os\nfor pid in {pids}:\n    try: os.kill(pid, 9)\n    except OSError: pass\n"
    run_code(code, "", SHORT)
    assert run_code("print(1)", "") == Outcome("ok", "1\n")


# -- LiveCodeBench -----------------------------------------------------------------------------------------------------


def row_of(private: str, **changes: Any) -> dict[str, Any]:
    public = [{"input": "1 2\n", "output": "3\n", "testtype": "stdin"}]
    return {
        "question_content": "Add two numbers.",
        "starter_code": "",
        "public_test_cases": json.dumps(public),
        "private_test_cases": private,
        "metadata": "{}",
        **changes,
    }


def problem_from(tmp_path: Path, row: dict[str, Any]) -> tasks.Problem:
    (tmp_path / "lcb.jsonl").write_text(json.dumps(row) + "\n")
    (problem,) = tasks.load(str(tmp_path / "lcb.jsonl"))
    return problem


def packed(cases: Any) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(cases)))).decode()


RIGHT = "<think>\n```python\nprint(0)\n```\n</think>\n```python\na, b = map(int, input().split())\nprint(a + b)\n```"


def test_programs_are_judged_by_public_and_private_tests(tmp_path: Path) -> None:
    problem = problem_from(tmp_path, row_of(packed([{"input": "5 -7\n", "output": "-2\n"}])))
    assert problem.is_right(RIGHT)
    assert not problem.is_right(RIGHT.replace("a + b", "abs(a + b)"))  # fails the private one
    assert not problem.is_right("I do not know.")
    assert not problem.is_right(RIGHT.replace("print(a + b)", "while True: pass"))


def test_functions_are_called(tmp_path: Path) -> None:
    cases = [{"input": "[1, 2, 3]\n2", "output": "[2, 4, 6]", "testtype": "functional"}]
    row = row_of(
        json.dumps([]),
        public_test_cases=json.dumps(cases),
        metadata=json.dumps({"func_name": "scale"}),
        starter_code="class Solution:\n    def scale(self, xs: List[int], k: int) -> List[int]:\n",
    )
    problem = problem_from(tmp_path, row)
    head = "class Solution:\n    def scale(self, xs: List[int], k: int) -> List[int]:"
    answer = f"```python\n{head}\n        return [k * x for x in xs]\n```"
    assert problem.is_right(answer) and "keep its names" in problem.instruction
    assert not problem.is_right(answer.replace("k * x", "x"))


@pytest.mark.parametrize("private", ["?", packed([])[:-8], base64.b64encode(b"junk").decode(), json.dumps({})])
def test_tests_that_cannot_be_read_are_an_error_of_the_data(tmp_path: Path, private: str) -> None:
    with pytest.raises(skipkv.BadInput, match="line 1"):
        problem_from(tmp_path, row_of(private))


def test_a_pickle_with_code_is_not_carried_out(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "exploded",))

    private = base64.b64encode(zlib.compress(pickle.dumps(Bomb()))).decode()
    with pytest.raises(skipkv.BadInput, match="more than a text"):
        problem_from(tmp_path, row_of(private))
    assert not (tmp_path / "exploded").exists()
