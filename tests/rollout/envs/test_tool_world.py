"""TRL's own trainer is the oracle: one scripted model, the same ids, masks and observations.

The trainer is the real one with a model of random weights; only what the model says is given, so
its rendering, parsing, tool loop and masks run as they do in training.
"""

import asyncio
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from fieldkit.records import Task, Trajectory
from reward.reward import Reward
from rollout.envs.base import Site
from rollout.envs.configured import register_environments
from rollout.envs.env_settings import EnvSettings
from rollout.envs.registry import make_world
from rollout.player import Player
from rollout.policies import reciting
from rollout.sandbox.command import SandboxSettings
from rollout.settings import EpisodeSettings
from rollout.transcript import ChatRenderer
from scripts.prepare.model import default_model_dir
from tests.rollout.envs.counter import Counter
from tests.rollout.envs.trl_templates import templates

HERE = Path(__file__).parent
PROMPT = "Count to 3."
MOST_TURNS = 8


@dataclass
class Seen:
    """One episode as token ids: everything after the prompt, and which of it was sampled."""

    prompt_ids: list[int]
    completion_ids: list[int]
    mask: list[int]
    tool_messages: list[str]


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


EPISODES = {
    "one call, then done": [call("add", '{"amount": 3}'), "Done."],
    "no call": ["I cannot."],
    "two calls in a reply": [call("add", '{"amount": 1}') + "\n" + call("peek", "{}"), "Done."],
    "a coroutine first": [call("peek", "{}") + "\n" + call("add", '{"amount": 1}'), "Done."],
    "text before the call": ["I add two.\n" + call("add", '{"amount": 2}'), "Done."],
    "a tool that raises": [call("add", '{"amount": -1}'), "Done."],
    "a tool that is unknown": [call("fly", "{}"), "Done."],
    "an argument that is unknown": [call("add", '{"size": 1}'), "Done."],
    "malformed JSON": ["<tool_call>\n{name: add}\n</tool_call>", "Done."],
    "an unclosed call": ['<tool_call>\n{"name": "add", "arguments": {"amount": 2}}', "Done."],
    "four turns": [call("add", '{"amount": 1}')] * 3 + ["Done."],
}


def random_model(n_tokens: int) -> Any:
    """A model of one layer with random weights, which what it says need not come from."""
    import torch

    transformers: Any = import_module("transformers")
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=n_tokens,
            hidden_size=8,
            intermediate_size=8,
            num_hidden_layers=1,
            num_attention_heads=1,
            max_position_embeddings=4096,
        )
    )


@cache
def trainer(name: str) -> Any:
    """TRL's trainer with a scripted model: set `script`, then `seen`."""
    from datasets import Dataset

    transformers: Any = import_module("transformers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TRL names the vLLM versions that it was tried with
        trl: Any = import_module("trl")

    class Scripted(trl.GRPOTrainer):  # type: ignore[misc]
        script: Sequence[tuple[int, ...]] = ()
        turn = 0
        seen: Any = None

        def _generate_single_turn(self, prompt_ids: Any, *args: Any, **more: Any) -> Any:
            ids = self.script[self.turn]
            self.turn += 1
            return [list(ids) for _ in prompt_ids], [[0.0] * len(ids) for _ in prompt_ids]

        def _tool_call_loop(self, prompts: Any, prompt_ids: Any, *args: Any) -> Any:
            found = super()._tool_call_loop(prompts, prompt_ids, *args)
            mask, completions, completion_ids, *_ = found
            told = [m["content"] for m in completions[0] if m["role"] == "tool"]
            self.seen = Seen(list(prompt_ids[0]), list(completion_ids[0]), list(mask[0]), told)
            return found

    tokenizer = transformers.AutoTokenizer.from_pretrained(default_model_dir())
    tokenizer.chat_template = templates()[name]
    return Scripted(
        model=random_model(len(tokenizer)),
        reward_funcs=lambda completions, **row: [0.0] * len(completions),
        train_dataset=Dataset.from_list(
            [{"prompt": [{"role": "user", "content": PROMPT}], "target": 3}] * 2
        ),
        processing_class=tokenizer,
        environment_factory=Counter,
        args=trl.GRPOConfig(
            output_dir=str(HERE / "unused"),
            per_device_train_batch_size=2,
            num_generations=2,
            max_completion_length=2048,
            max_tool_calling_iterations=MOST_TURNS,
            report_to=[],
            use_cpu=True,
        ),
    )


def theirs(name: str, replies: Sequence[str], renderer: ChatRenderer) -> Seen:
    oracle = trainer(name)
    oracle.script, oracle.turn = [renderer.encode_reply(r) for r in replies], 0
    row = {"prompt": [{"role": "user", "content": PROMPT}], "target": 3}
    oracle._generate_and_score_completions([dict(row), dict(row)])
    seen: Seen = oracle.seen
    return seen


def ours(replies: Sequence[str], renderer: ChatRenderer) -> Seen:
    site = Site(SandboxSettings(), HERE, tool_form="hermes")
    player = Player(
        policy=lambda task, limits: reciting(replies, renderer, limits),
        worlds=lambda t: make_world(t, site),
        settings=EpisodeSettings(max_turns=MOST_TURNS, max_new_tokens=256, max_model_len=4096),
        adapter_sha="written",
        policy_version="written",
        reward=Reward(),
    )
    task = Task("count-3", "counter", PROMPT, {"target": 3})
    played: Trajectory = asyncio.run(player.play(task, 0, lambda turn: turn + 1))
    first, last = played.turns[0], played.turns[-1]
    whole = [*last.prompt_ids, *last.completion_ids]
    mask = [0] * len(whole)
    for turn in played.turns:
        began = len(turn.prompt_ids)
        mask[began : began + len(turn.completion_ids)] = [1] * len(turn.completion_ids)
    n = len(first.prompt_ids)
    told = [t.observation for t in played.turns if t.observation is not None]
    return Seen(whole[:n], whole[n:], mask[n:], "\n".join(told).split("\n") if told else [])


@pytest.fixture(autouse=True)
def _counter(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("random.randrange", lambda n: 7)  # each seeds the generators in its own way
    register_environments(
        {"counter": EnvSettings(use="counter.py:Counter", passes="reward >= 1")}, HERE
    )
    yield
    register_environments({}, HERE)


@pytest.mark.parametrize("name", ["qwen2_5", "qwen3"])
@pytest.mark.parametrize("episode", EPISODES)
def test_an_episode_is_the_same_as_in_trl_token_for_token(name: str, episode: str) -> None:
    renderer = ChatRenderer(default_model_dir(), templates()[name])
    found = ours(EPISODES[episode], renderer)
    wanted = theirs(name, EPISODES[episode], renderer)
    assert found.prompt_ids == wanted.prompt_ids
    assert found.completion_ids == wanted.completion_ids
    assert found.mask == wanted.mask
    assert found.tool_messages == wanted.tool_messages
