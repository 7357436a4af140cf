"""TRL's own trainer is the oracle: one scripted model, the same ids, masks and observations.

The trainer is the real one with a model of random weights; only what the model says is given, so
its rendering, parsing, tool loop and masks run as they do in training.
"""

import asyncio
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from rollout.envs.tool_world import row_of
from rollout.player import Player
from rollout.policies import reciting
from rollout.sandbox.command import SandboxSettings
from rollout.settings import EpisodeSettings
from rollout.transcript import ChatRenderer
from scripts.prepare.model import default_model_dir
from tests.rollout.envs.counter import Counter, only_even, short
from tests.rollout.envs.multi_env import TwoGames, catch_reward, word_reward
from tests.rollout.envs.trl_examples import ARITHMETIC, Increment, right
from tests.rollout.envs.trl_templates import templates

pytestmark = pytest.mark.trl

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
    rewards: list[float | None]
    """What each source of rewards says; None where it does not apply."""


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


@dataclass(frozen=True)
class Asked:
    """A class of an environment, or functions as tools; its reward functions, and a row."""

    kind: type | tuple[Callable[..., Any], ...]
    rewards: tuple[Callable[..., Any], ...]
    prompt: str
    row: Mapping[str, Any]


COUNTING = Asked(Counter, (short, only_even), PROMPT, {"target": 3})
WORD = Asked(TwoGames, (word_reward, catch_reward), "Win. ", {"env": "word", "secret": "crane"})
CATCH = Asked(TwoGames, (word_reward, catch_reward), "Win. ", {"env": "catch"})
INCREMENT = Asked(Increment, (), "", {})
ARITHMETIC_ROW = Asked(tuple(ARITHMETIC), (right,), "What is 6 times 7? ", {"answer": 42})


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
def trainer(
    name: str,
    kind: type | tuple[Callable[..., Any], ...],
    rewards: tuple[Callable[..., Any], ...],
) -> Any:
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

        def _calculate_rewards(self, *args: Any) -> Any:
            found = super()._calculate_rewards(*args)
            self.seen.rewards = [None if v != v else round(float(v), 5) for v in found[0]]
            return found

        def _generate_single_turn(self, prompt_ids: Any, *args: Any, **more: Any) -> Any:
            ids = self.script[self.turn]
            self.turn += 1
            return [list(ids) for _ in prompt_ids], [[0.0] * len(ids) for _ in prompt_ids]

        def _tool_call_loop(self, prompts: Any, prompt_ids: Any, *args: Any) -> Any:
            found = super()._tool_call_loop(prompts, prompt_ids, *args)
            mask, completions, completion_ids, *_ = found
            told = [m["content"] for m in completions[0] if m["role"] == "tool"]
            self.seen = Seen(list(prompt_ids[0]), list(completion_ids[0]), list(mask[0]), told, [])
            return found

    tokenizer = transformers.AutoTokenizer.from_pretrained(default_model_dir())
    tokenizer.chat_template = templates()[name]
    return Scripted(
        model=random_model(len(tokenizer)),
        reward_funcs=list(rewards),
        train_dataset=Dataset.from_list(
            [{"prompt": [{"role": "user", "content": PROMPT}]}] * 2  # given by hand, later
        ),
        processing_class=tokenizer,
        **({"environment_factory": kind} if isinstance(kind, type) else {"tools": list(kind)}),
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


def theirs(name: str, asked: Asked, replies: Sequence[str], renderer: ChatRenderer) -> Seen:
    oracle = trainer(name, asked.kind, asked.rewards)
    oracle.script, oracle.turn = [renderer.encode_reply(r) for r in replies], 0
    row = {"prompt": [{"role": "user", "content": asked.prompt}], **asked.row}
    oracle._generate_and_score_completions([dict(row), dict(row)])
    seen: Seen = oracle.seen
    return seen


def ours(env: str, asked: Asked, replies: Sequence[str], renderer: ChatRenderer) -> Seen:
    site = Site(SandboxSettings(), HERE, tool_form="hermes")
    player = Player(
        policy=lambda task, limits: reciting(replies, renderer, limits),
        worlds=lambda t: make_world(t, site),
        settings=EpisodeSettings(max_turns=MOST_TURNS, max_new_tokens=256, max_model_len=4096),
        adapter_sha="written",
        policy_version="written",
        reward=Reward(),
    )
    task = Task("one", env, asked.prompt, dict(asked.row))
    played: Trajectory = asyncio.run(player.play(task, 0, lambda turn: turn + 1))
    first, last = played.turns[0], played.turns[-1]
    whole = [*last.prompt_ids, *last.completion_ids]
    mask = [0] * len(whole)
    for turn in played.turns:
        began = len(turn.prompt_ids)
        mask[began : began + len(turn.completion_ids)] = [1] * len(turn.completion_ids)
    n = len(first.prompt_ids)
    told = "\n".join(t.observation for t in played.turns if t.observation is not None)
    rewards = [None if p.value is None else round(p.value, 5) for p in played.grade.rewards]
    return Seen(whole[:n], whole[n:], mask[n:], [told], rewards)


@pytest.fixture(autouse=True)
def _counter(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("random.randint", lambda low, high: high)
    monkeypatch.setattr("random.randrange", lambda n: 7)  # each seeds the generators in its own way
    weights = {f"multi_env.py:{name}_reward": 1.0 for name in ("word", "catch")}
    games = EnvSettings("multi_env.py:TwoGames", "word_reward >= 1", rewards=weights)
    own = {"counter.py:short": 1.0, "counter.py:only_even": 1.0}
    counter = EnvSettings("counter.py:Counter", "reward >= 1", rewards=own)
    increment = EnvSettings("trl_examples.py:Increment", "reward >= 1")
    paid = {"trl_examples.py:right": 1.0}
    arithmetic = EnvSettings("trl_examples.py:ARITHMETIC", "right == 1", rewards=paid)
    known = {"counter": counter, "games": games, "increment": increment, "arithmetic": arithmetic}
    register_environments(known, HERE)
    yield
    register_environments({}, HERE)


def say(word: str) -> str:
    return call("guess", f'{{"word": "{word}"}}')


def require_equal(name: str, env: str, asked: Asked, replies: Sequence[str]) -> Seen:
    renderer = ChatRenderer(default_model_dir(), templates()[name])
    found = ours(env, asked, replies, renderer)
    wanted = theirs(name, asked, replies, renderer)
    wanted.tool_messages = ["\n".join(wanted.tool_messages)]
    assert found == wanted
    return found


@pytest.mark.parametrize("name", ["qwen2_5", "qwen3"])
@pytest.mark.parametrize("episode", EPISODES)
def test_an_episode_is_the_same_as_in_trl_token_for_token(name: str, episode: str) -> None:
    require_equal(name, "counter", COUNTING, EPISODES[episode])


@pytest.mark.parametrize(
    ("asked", "replies", "rewards"),
    [
        (WORD, [say("crate"), "I give up."], [0.8, None]),
        (WORD, [say("cat"), say("crane"), "Won."], [1.0, None]),
        (WORD, [call("move", '{"direction": "left"}'), call("stay", "{}"), "No."], [0.0, None]),
        (WORD, [say("crane"), say("crane"), "Over."], [1.0, None]),
        (CATCH, [call("stay", "{}")] * 3 + ["Caught."], [None, 1.0]),
        (CATCH, [call("move", '{"direction": "left"}')] * 4 + ["Over."], [None, 0.0]),
        (CATCH, [call("move", '{"direction": "up"}'), "Hm."], [None, 0.0]),
    ],
)
def test_two_games_behind_one_class_are_played_and_paid_as_in_trl(
    asked: Asked, replies: list[str], rewards: list[float | None]
) -> None:
    """Cumulative feedback, a game that is over, a tool of the other game, rewards of one game."""
    assert require_equal("qwen3", "games", asked, replies).rewards == rewards


@pytest.mark.parametrize(
    ("replies", "reward"),
    [
        ([call("increment", '{"step": 3}'), call("increment", '{"step": 1}'), "Done."], 1.0),
        ([call("increment", '{"step": "x"}'), "Hm."], 0.0),
        (["Done."], 0.0),
    ],
)
def test_a_class_that_owns_its_data_is_played_and_paid_as_in_trl(
    replies: list[str], reward: float
) -> None:
    """The prompt is what `reset` says, and the reward is the class's own."""
    assert require_equal("qwen3", "increment", INCREMENT, replies).rewards == [reward]


@pytest.mark.parametrize(
    ("replies", "reward"),
    [
        ([call("multiply", '{"a": 6, "b": 7}'), "It is 42."], 1.0),
        (
            [call("add", '{"a": 6, "b": 7}') + "\n" + call("multiply", '{"a": 1, "b": 2}'), "13"],
            0.0,
        ),
        ([call("divide", '{"a": 6, "b": 7}'), "It is 42."], 1.0),
    ],
)
def test_functions_as_tools_are_played_and_paid_as_in_trl(
    replies: list[str], reward: float
) -> None:
    """One of them is a coroutine, and runs after the others of its reply."""
    assert require_equal("qwen3", "arithmetic", ARITHMETIC_ROW, replies).rewards == [reward]


def test_no_attempt_plays_on_a_list_of_another_attempts_row() -> None:
    task = Task("t", "maze", "Go.", {"board": [[0, 0]]})
    row_of(task)["board"][0][0] = 1
    assert row_of(task) == {"prompt": "Go.", "board": [[0, 0]]}
