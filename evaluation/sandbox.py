"""Runs code that a model wrote, where it can do no harm.

A child in namespaces of its own (unshare: user, mount, process, network): it sees a read-only system without anyone's
files, an empty folder in memory, an empty environment and no network, has no capabilities, and is held to limits of
time, memory, output and processes. When it ends, all that it started ends. Where the kernel allows no such
namespaces, nothing is run at all.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from skipkv.errors import BadInput

NOBODY = 65534
SYSTEM = ("/usr", "/bin", "/lib", "/lib64", "/sbin")

# Builds a root of its own in memory, binds the system read-only into it, and gives all power away before it starts.
SCRIPT = """
set -e
mount -t tmpfs -o size=64m,mode=755 tmpfs "$ROOT"
for place in $PLACES; do
  [ -d "$place" ] || continue
  mkdir -p "$ROOT$place"
  mount --bind "$place" "$ROOT$place"
  mount -o remount,bind,ro,nosuid,nodev "$ROOT$place"
done
mkdir -p "$ROOT/code" "$ROOT/box" "$ROOT/proc" "$ROOT/dev"
mount --bind "$CODE" "$ROOT/code"
mount -o remount,bind,ro,nosuid,nodev "$ROOT/code"
mount -t proc proc "$ROOT/proc"
for device in null zero urandom; do touch "$ROOT/dev/$device"; mount --bind /dev/$device "$ROOT/dev/$device"; done
exec chroot "$ROOT" /usr/bin/env -i -C /box PATH=/usr/bin:/bin HOME=/box LC_ALL=C.UTF-8 \\
  prlimit --nproc="$PROCESSES" setpriv $BECOME --no-new-privs --inh-caps=-all --bounding-set=-all \\
  "$PYTHON" -I /code/main.py
"""


@dataclass(frozen=True)
class Limits:
    """What a run may use: seconds of processor and of wall time, bytes of memory and of each file, processes."""

    cpu_seconds: int = 8
    wall_seconds: float = 12.0
    memory: int = 1 << 30
    output: int = 8 << 20
    processes: int = 16


@dataclass(frozen=True)
class Outcome:
    """How a run ended; `ended` is "ok", "error" (another exit code) or "timeout"."""

    ended: str
    output: str


def run_code(code: str, given: str, limits: Limits | None = None) -> Outcome:
    """Runs a Python program on a standard input.

    Raises:
        BadInput: this machine cannot shut it in.
    """
    if not usable():
        raise BadInput("generated code runs in Linux namespaces only, and this machine allows none (unshare, setpriv)")
    return _run(code, given, limits or Limits())


@lru_cache(maxsize=1)
def usable() -> bool:
    """Whether a sandbox can be built here."""
    tools = ("unshare", "setpriv", "mount", "chroot", "env", "prlimit")
    if sys.platform != "linux" or not all(shutil.which(tool) for tool in tools):
        return False
    return _run("print('in')", "", Limits()) == Outcome("ok", "in\n")


def _run(code: str, given: str, limits: Limits) -> Outcome:
    as_root = os.getuid() == 0  # then it needs no namespace of users, and becomes nobody before the program starts
    with tempfile.TemporaryDirectory(prefix="skipkv-") as folder:
        place = Path(folder)
        place.chmod(0o755)
        (place / "code").mkdir()
        (place / "root").mkdir()
        (place / "code" / "main.py").write_text(code, encoding="utf-8", errors="replace")
        (place / "given").write_text(given, encoding="utf-8", errors="replace")
        python = Path(sys.executable).resolve()
        prefixes = [path for path in (sys.base_prefix, str(python.parent.parent)) if not path.startswith("/usr")]
        environment = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "ROOT": str(place / "root"),
            "CODE": str(place / "code"),
            "PLACES": " ".join(dict.fromkeys([*SYSTEM, *prefixes])),
            "PYTHON": str(python),
            "PROCESSES": str(limits.processes),
            "BECOME": f"--reuid {NOBODY} --regid {NOBODY} --clear-groups" if as_root else "",
        }
        command = ["unshare", *([] if as_root else ["--user", "--map-root-user"])]
        command += ["--net", "--mount", "--ipc", "--pid", "--fork"]
        with (place / "given").open("rb") as stdin, (place / "output").open("w+b") as stdout:
            process = subprocess.Popen(
                [*command, "/bin/sh", "-c", SCRIPT],
                stdin=stdin,
                stdout=stdout,
                stderr=subprocess.DEVNULL,
                env=environment,
                cwd="/",
                preexec_fn=_limiter(limits),
                start_new_session=True,
            )
            try:
                code_of_exit = process.wait(timeout=limits.wall_seconds)
            except subprocess.TimeoutExpired:
                return Outcome("timeout", "")
            finally:
                # The group holds the namespace's first process, and with that all others in it end.
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            stdout.seek(0)
            output = stdout.read(limits.output).decode(errors="replace")
        return Outcome("ok" if code_of_exit == 0 else "error", output)


def _limiter(limits: Limits) -> Callable[[], None]:
    """What the child does to itself before it starts."""

    import resource  # Unix only, as all of this; the module must load elsewhere

    def limit() -> None:
        for kind, value in (
            (resource.RLIMIT_CPU, limits.cpu_seconds),
            (resource.RLIMIT_AS, limits.memory),
            (resource.RLIMIT_FSIZE, limits.output),
            (resource.RLIMIT_CORE, 0),
        ):
            resource.setrlimit(kind, (value, value))

    return limit
