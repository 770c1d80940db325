"""The same evaluation over many GPUs or machines, with Ray.

One actor per GPU (or per two CPUs) loads the model once. Requests go out in pieces and come back as results, into the
same run folder as ever; the piece of a lost worker is done again by a new one. A request draws its own randomness, so
it does not matter which worker answers it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from skipkv.decoding import Result, Settings
from skipkv.errors import BadInput
from skipkv.evaluation.models import load
from skipkv.evaluation.runner import answers_of
from skipkv.policies import Policy
from skipkv.steering.vectors import SteeringVector

log = logging.getLogger(__name__)

PIECE = 2  # batches of requests that a worker takes at a time: enough to refill finished rows from


class Worker:
    """One model on one device; an actor."""

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        import torch

        gpu = {"device": "cuda"} if torch.cuda.is_available() else {}
        self.model, self.tokenizer = load(name, **{**options, **gpu})

    def answer(
        self, waiting: dict[int, str], policy: Policy, settings: Settings, steering: SteeringVector | None
    ) -> list[Result]:
        """All results of a piece."""
        return list(answers_of(self.model, self.tokenizer, waiting, policy, settings, steering))


class Pool:
    """Workers on a Ray cluster.

    Args:
        address: of the cluster, or "local" to start one on this machine.
        name, options: what `skipkv.evaluation.models.load` takes.
        workers: how many; one per GPU where None, or one per two CPUs without GPUs.

    Raises:
        BadInput: Ray is not installed, or the cluster is not reached.
    """

    def __init__(self, address: str, name: str, options: dict[str, Any], workers: int | None = None) -> None:
        try:
            import ray
        except ImportError as error:
            raise BadInput("--ray needs Ray: pip install skipkv[ray]") from error
        self.ray = ray
        try:
            ray.init(
                None if address == "local" else address,
                ignore_reinit_error=True,
                include_dashboard=False,
                logging_level=logging.ERROR,
                log_to_driver=False,
            )
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise BadInput(f"--ray is '{address}', which is not reached: {str(error).splitlines()[0]}") from error
        held = ray.cluster_resources()
        gpus = int(held.get("GPU", 0))
        count = workers or gpus or max(1, int(held.get("CPU", 1)) // 2)
        needs: dict[str, Any] = {"num_gpus": 1} if gpus else {"num_cpus": 1}
        self._hire = lambda: ray.remote(Worker).options(**needs).remote(name, options)
        self.workers = [self._hire() for _ in range(count)]

    def answers_of(
        self, waiting: dict[int, str], policy: Policy, settings: Settings, steering: SteeringVector | None
    ) -> Iterator[Result]:
        """Answers the prompts by request number, in the order in which pieces come back."""
        requests, size = list(waiting), PIECE * settings.batch_size
        pieces = [requests[start : start + size] for start in range(0, len(requests), size)]
        idle, busy = list(range(len(self.workers))), dict[Any, tuple[int, list[int]]]()
        while pieces or busy:
            while pieces and idle:
                worker, piece = idle.pop(), pieces.pop(0)
                prompts = {request: waiting[request] for request in piece}
                busy[self.workers[worker].answer.remote(prompts, policy, settings, steering)] = (worker, piece)
            (done,), _ = self.ray.wait(list(busy), num_returns=1)
            worker, piece = busy.pop(done)
            try:
                yield from self.ray.get(done)
            except self.ray.exceptions.RayActorError:
                log.warning("worker %d was lost: its %d problems are done again", worker, len(piece))
                self.workers[worker] = self._hire()
                pieces.insert(0, piece)
            idle.append(worker)

    def close(self) -> None:
        """Lets the workers go; a cluster of our own ends."""
        for worker in self.workers:
            self.ray.kill(worker)
        self.ray.shutdown()
