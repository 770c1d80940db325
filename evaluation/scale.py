"""The same evaluation over many GPUs or machines, with Ray.

One actor per GPU (or per two CPUs) loads the model once. Requests go out in pieces and come back as results, into the
same run folder as ever; the piece of a lost worker is done again by a new one. A request draws its own randomness, so
it does not matter which worker answers it. Several runs may share the workers, each from a thread of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from queue import SimpleQueue
from typing import Any

import torch

from skipkv.decoding import Result, Settings
from skipkv.errors import BadInput
from skipkv.evaluation.models import load
from skipkv.evaluation.runner import answers_of
from skipkv.policies import Policy
from skipkv.steering.vectors import SteeringVector

log = logging.getLogger(__name__)

PIECE = 2  # batches of requests that a worker takes at a time: enough to refill finished rows from
LOSSES = 3  # workers that one piece may cost before it is the piece that is to blame


class Worker:
    """One model on one device; an actor."""

    def load(self, name: str, options: dict[str, Any]) -> None:
        """Loads the model, onto the GPU where the worker has one."""
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
        self.ray, self.loading = ray, (name, options)
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
        cpus = int(held.get("CPU", 1))
        count = workers or gpus or max(1, cpus // 2)
        if count > (gpus or cpus):
            log.warning("%d workers are asked for; the cluster has room for %d now", count, gpus or cpus)
        self.needs: dict[str, Any] = {"num_gpus": 1} if gpus else {"num_cpus": 1}
        self.closed = False
        self.answering, self.hiring = ThreadPoolExecutor(count), ThreadPoolExecutor(count)
        self.workers: list[Any] = []
        self.idle: SimpleQueue[Any] = SimpleQueue()  # workers; an exception where none will come any more
        for _ in range(count):
            self.hiring.submit(self._hire)

    def _hire(self) -> None:
        """A new worker that loads the model; where it cannot the others go on, and without others the run fails."""
        worker = self.ray.remote(Worker).options(**self.needs).remote()
        self.workers.append(worker)
        try:
            self._get(worker.load.remote(*self.loading))
        except Exception as error:
            self.workers.remove(worker)
            if not self.workers:
                self.idle.put(error)
        else:
            self.idle.put(worker)

    def _get(self, called: Any) -> Any:
        """The result of a call to a worker; bad input is told as here."""
        try:
            return self.ray.get(called)
        except self.ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, BadInput):
                raise BadInput(str(error.cause)) from error
            raise

    def _answer(self, waiting: dict[int, str], *how: Any) -> list[Result]:
        """A piece by the next idle worker; by another one where that is lost."""
        for left in reversed(range(LOSSES)):
            worker = self.idle.get()
            if isinstance(worker, Exception):
                self.idle.put(worker)  # for whoever else waits
                raise worker
            try:
                results = self._get(worker.answer.remote(waiting, *how))
            except self.ray.exceptions.RayActorError:
                if self.closed or not left:
                    raise
                self.workers.remove(worker)
                self.hiring.submit(self._hire)
                log.warning("a worker was lost: its %d problems are done again", len(waiting))
            except BaseException:
                self.idle.put(worker)
                raise
            else:
                self.idle.put(worker)
                return results
        raise AssertionError("unreachable: the last loss is raised")

    def answers_of(
        self, waiting: dict[int, str], policy: Policy, settings: Settings, steering: SteeringVector | None
    ) -> Iterator[Result]:
        """Answers the prompts by request number, in the order in which pieces come back."""
        requests, size = list(waiting), PIECE * settings.batch_size
        done = []
        for start in range(0, len(requests), size):
            piece = {request: waiting[request] for request in requests[start : start + size]}
            done.append(self.answering.submit(self._answer, piece, policy, settings, steering))
        for answered in as_completed(done):
            yield from answered.result()

    def close(self) -> None:
        """Lets the workers go; a cluster of our own ends."""
        self.closed = True
        self.idle.put(RuntimeError("the pool is closed"))
        for worker in self.workers:
            self.ray.kill(worker)  # calls that wait for it end
        for threads in (self.answering, self.hiring):
            threads.shutdown(cancel_futures=True)
        self.ray.shutdown()
