"""The scripted engine: answers grpo-loop's requests to vLLM with transformers and peft.

First on PYTHONPATH, it is started instead of the real package, by the same command line. It
computes requests one at a time on one thread, so equal requests have answers equal to the last bit;
the real vLLM's may differ. Its child, like vLLM's EngineCore, ends with a regular exit and outlives
a kill. It serves tests of faults and exactness and proves nothing about vLLM.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI, HTTPException, Request
from fastapi.concurrency import run_in_threadpool
from peft import PeftModel
from transformers import AutoModelForCausalLM

WORKER = "import signal; signal.pause()"
SLOWER = float(os.environ.get("GRPO_TEST_SLOWER", "1"))
"""How many times as long every answer takes."""


@contextlib.contextmanager
def _slowed() -> Iterator[None]:
    began = time.monotonic()
    yield
    time.sleep((SLOWER - 1) * (time.monotonic() - began))


class Model:
    """A base model with adapters by name, one request at a time.

    processed: the logprobs are those after temperature; vLLM's default is the others.
    """

    def __init__(
        self, folder: str, base_name: str, adapters: dict[str, str], *, processed: bool
    ) -> None:
        torch.set_num_threads(1)
        self.processed = processed
        self.base_name = base_name
        self.folder = folder
        self.roots = {base_name: folder}
        self._busy = threading.Lock()
        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self._model.eval()  # type: ignore[no-untyped-call]
        for name, path in adapters.items():
            self.load(name, path)

    def load(self, name: str, path: str) -> None:
        with self._busy:
            if isinstance(self._model, PeftModel):
                self._model.load_adapter(path, adapter_name=name)
            else:
                self._model = PeftModel.from_pretrained(self._model, path, adapter_name=name)
            self._model.eval()
            self.roots[name] = path

    def unload(self, name: str) -> None:
        with self._busy:
            self._model.delete_adapter(name)
            del self.roots[name]

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        """The answer to /v1/completions: sampled ids, or the prompt's logprobs."""
        with self._busy, torch.no_grad(), _slowed():
            if body["model"] == self.base_name and isinstance(self._model, PeftModel):
                with self._model.disable_adapter():
                    return self._answer(body)
            if body["model"] != self.base_name:
                self._model.set_adapter(body["model"])
            return self._answer(body)

    def _answer(self, body: dict[str, Any]) -> dict[str, Any]:
        prompt = list(body["prompt"])
        if "prompt_logprobs" in body:
            return {"prompt_logprobs": self._prompt_logprobs(prompt)}
        ids, logprobs, finish = self._sample(prompt, body)
        return {
            "token_ids": ids,
            "logprobs": {"token_logprobs": logprobs},
            "finish_reason": finish,
        }

    def _prompt_logprobs(self, prompt: list[int]) -> list[Any]:
        logits = self._model(torch.tensor([prompt])).logits[0, :-1].float()
        rows = torch.log_softmax(logits, -1)
        return [None] + [
            {str(i): {"logprob": row[i].item()}} for i, row in zip(prompt[1:], rows, strict=True)
        ]

    def _sample(
        self, prompt: list[int], body: dict[str, Any]
    ) -> tuple[list[int], list[float], str]:
        generator = torch.Generator().manual_seed(body["seed"])
        stops = {*body["stop_token_ids"], self._model.config.eos_token_id}
        ids: list[int] = []
        logprobs: list[float] = []
        given, past = torch.tensor([prompt]), None
        for _ in range(body["max_tokens"]):
            out = self._model(given, past_key_values=past, use_cache=True)
            past = out.past_key_values
            logits = out.logits[0, -1].float()
            row = torch.log_softmax(logits / body["temperature"], -1)
            chosen = int(torch.multinomial(row.exp(), 1, generator=generator))
            ids.append(chosen)
            reported = row if self.processed else torch.log_softmax(logits, -1)
            logprobs.append(reported[chosen].item())
            if chosen in stops:
                return ids, logprobs, "stop"
            given = torch.tensor([[chosen]])
        return ids, logprobs, "length"


def make_app(model: Model, key: str, context: int, worker: subprocess.Popen[bytes]) -> FastAPI:
    """Make the app. context: tokens of prompt and reply. Its routes except /health answer 401
    without the key. Its regular exit ends `worker`."""

    @contextlib.asynccontextmanager
    async def living(app: FastAPI) -> AsyncIterator[None]:
        yield
        worker.terminate()

    app = FastAPI(lifespan=living)

    def check(request: Request) -> None:
        if request.headers.get("authorization") != f"Bearer {key}":
            raise HTTPException(401)

    @app.get("/health")
    def health() -> None:
        return None

    @app.get("/v1/models")
    def models(request: Request) -> dict[str, Any]:
        check(request)
        base = {"id": model.base_name, "root": model.folder, "max_model_len": context}
        adapters = [
            {"id": name, "root": root, "parent": model.base_name}
            for name, root in model.roots.items()
            if name != model.base_name
        ]
        return {"data": [base, *adapters]}

    @app.post("/v1/completions")
    async def completions(request: Request) -> dict[str, Any]:
        check(request)
        body = await request.json()
        if body["model"] not in model.roots:
            raise HTTPException(404, f"{body['model']} is not served")
        return {"choices": [await run_in_threadpool(model.complete, body)]}

    @app.post("/v1/load_lora_adapter")
    async def load(request: Request) -> None:
        check(request)
        body = await request.json()
        if "lora_name" not in body:
            raise HTTPException(400, "lora_name is missing")
        await run_in_threadpool(model.load, body["lora_name"], body["lora_path"])

    @app.post("/v1/unload_lora_adapter")
    async def unload(request: Request) -> None:
        check(request)
        body = await request.json()
        await run_in_threadpool(model.unload, body["lora_name"])

    return app


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--served-model-name", required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--lora-modules", nargs="*", default=[])
    parser.add_argument("--max-model-len", type=int, default=2048)
    parser.add_argument("--logprobs-mode", default="raw_logprobs")
    words, _ = parser.parse_known_args()
    worker = subprocess.Popen([sys.executable, "-c", WORKER])
    adapters = dict(word.split("=", 1) for word in words.lora_modules)
    processed = words.logprobs_mode == "processed_logprobs"
    model = Model(words.model, words.served_model_name, adapters, processed=processed)
    app = make_app(model, os.environ["VLLM_API_KEY"], words.max_model_len, worker)
    uvicorn.run(app, host=words.host, port=words.port, log_level="warning")


if __name__ == "__main__":
    main()
