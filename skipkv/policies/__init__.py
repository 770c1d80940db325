"""Eviction policies: one file each, one line each in the table below."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from skipkv.errors import BadInput
from skipkv.policies.base import Policy
from skipkv.policies.full import FullKV
from skipkv.policies.h2o import H2O
from skipkv.policies.kvpress import PREFIX, KVPress
from skipkv.policies.rkv import RKV
from skipkv.policies.skipkv import SkipKV
from skipkv.policies.snapkv import SnapKV
from skipkv.policies.streamingllm import StreamingLLM

__all__ = ["H2O", "POLICIES", "RKV", "FullKV", "Policy", "SkipKV", "SnapKV", "StreamingLLM", "build"]

POLICIES: dict[str, type[Policy]] = {policy.name: policy for policy in (FullKV, StreamingLLM, H2O, SnapKV, RKV, SkipKV)}


def require_known(name: str) -> None:
    """Raises BadInput where `build` has no such policy."""
    if name not in POLICIES and not name.startswith(PREFIX):
        raise BadInput(f"unknown method '{name}'; known are {', '.join(POLICIES)}, and {PREFIX}PRESS of kvpress")


def build(name: str, **options: Any) -> Policy:
    """The policy called `name`. Options that it does not have are left out, so that one set serves all policies.

    Raises:
        BadInput: there is no such policy, no policy has such an option, or a value is out of range.
    """
    require_known(name)
    known = {field.name for policy in POLICIES.values() for field in fields(policy)}
    if unknown := sorted(set(options) - known):
        raise BadInput(f"no policy has the option '{unknown[0]}'; options are {', '.join(sorted(known))}")
    kind: type[Policy] = POLICIES.get(name, KVPress)
    own = {field.name for field in fields(kind)}
    if name == FullKV.name:
        own.discard("budget")
    if kind is KVPress:
        options["press"] = name.removeprefix(PREFIX)
    return kind(**{key: value for key, value in options.items() if key in own})
