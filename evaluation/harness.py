"""SkipKV as a model of lm-evaluation-harness.

    python -m skipkv.evaluation.harness --model skipkv --model_args pretrained=DIR,method=skipkv,budget=512 ...

is `lm_eval` with this model known to it; `import skipkv.evaluation.harness` does the same in a script. Texts are
written under the policy; log-likelihoods are the plain model's, because nothing is evicted while a given text is read
at once.
"""

from __future__ import annotations

from typing import Any

from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM

from skipkv import policies
from skipkv.decoding import Settings
from skipkv.evaluation.runner import answers_of
from skipkv.steering.vectors import load_vector


@register_model("skipkv")
class SkipKVModel(HFLM):
    """A Hugging Face model of the harness whose generations run with a budget and steering.

    Args:
        method: name of a policy.
        budget: slots per head; none for "full".
        vectors: a steering vector's file.
        window, tau, lam, interval: options of the policy.
        others: what the harness's own Hugging Face model takes.
    """

    def __init__(
        self,
        pretrained: str,
        method: str = "skipkv",
        budget: int | None = None,
        vectors: str | None = None,
        interval: int | None = None,
        window: int = 8,
        tau: float = 0.95,
        lam: float = 0.1,
        **others: Any,
    ) -> None:
        super().__init__(pretrained=pretrained, **others)
        slots = None if method == "full" else budget
        self.policy = policies.build(method, budget=slots, window=window, tau=tau, lam=lam)
        self.interval = interval
        self.steering = load_vector(vectors, tokenizer=self.tokenizer, model=pretrained) if vectors else None

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Greedy or sampled texts, cut at the first stop text, as the harness asks for them."""
        texts: dict[int, str] = {}
        for options in {repr(request.args[1]): request.args[1] for request in requests}.values():
            waiting = {i: request.args[0] for i, request in enumerate(requests) if request.args[1] == options}
            settings = Settings(
                batch_size=int(self.batch_size_per_gpu),
                max_new_tokens=int(options.get("max_gen_toks", self.max_gen_toks)),
                temperature=float(options.get("temperature", 0.0)) if options.get("do_sample") else 0.0,
                top_p=float(options.get("top_p", 1.0)),
                interval=self.interval,
            )
            stops = options.get("until") or []
            for result in answers_of(self.model, self.tokenizer, waiting, self.policy, settings, self.steering):
                text = result.text
                for stop in [stops] if isinstance(stops, str) else stops:
                    text = text.split(stop)[0] if stop else text
                texts[result.index] = text
        return [texts[i] for i in range(len(requests))]


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
