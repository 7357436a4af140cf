# /// script
# dependencies = ["verifiers[rg]==0.3.1"]
# ///
"""Environments of each kind that verifiers has, as their authors write them."""

import asyncio
import os
import random

import verifiers as vf
from datasets import Dataset
from openai import AsyncOpenAI


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: the first
        b: the second
    """
    return a + b


async def right(completion, answer):
    return float(str(answer) in completion[-1].content)


def sums(n=8):
    rows = [{"question": f"What is {i} + {i}?", "answer": str(2 * i)} for i in range(n)]
    return Dataset.from_list(rows)


def tools(**options):
    rubric = vf.Rubric(funcs=[right, lambda_free], weights=[1.0, 0.5])
    return vf.ToolEnv(dataset=sums(), tools=[add], rubric=rubric, max_turns=4, **options)


def lambda_free(completion):
    return 0.5


class Till(vf.StatefulToolEnv):
    """A till: the session is the environment's, and hidden from the policy."""

    def __init__(self, **options):
        super().__init__(**options)
        self.add_tool(self.pay, args_to_skip=["session"])

    async def setup_state(self, state):
        state["session"] = []
        return state

    def update_tool_args(self, tool_name, tool_args, messages, state, **kwargs):
        return {**tool_args, "session": state["session"]}

    async def pay(self, coins: int, session: list) -> str:
        """Put coins into the till.

        Args:
            coins: how many
        """
        session.append(coins)
        return f"{sum(session)} in the till"


async def paid(state):
    return float(sum(state["session"]))


class Guess(vf.MultiTurnEnv):
    """Guess a number between 0 and 99."""

    async def setup_state(self, state):
        state["number"] = random.randrange(100)
        return state

    async def env_response(self, messages, state):
        said = messages[-1].content
        if said == "give up":
            state["final_env_response"] = [{"role": "user", "content": "A pity."}]
            return state["final_env_response"]
        return [{"role": "user", "content": f"{said}? Not yet; it is {state['number']}."}]

    @vf.stop
    async def guessed(self, state):
        steps = state["trajectory"]
        return bool(steps) and steps[-1]["completion"][-1].content == str(state["number"])


async def hit(completion, state):
    return float(completion[-1].content == str(state["number"]))


class Forgets(Guess):
    async def get_prompt_messages(self, state):
        return state["prompt"] if state["trajectory"] else await super().get_prompt_messages(state)


class Broken(Guess):
    async def setup_state(self, state):
        raise KeyError("no file")


MET = asyncio.Event()


async def stay() -> str:
    """Wait until somebody calls."""
    await MET.wait()
    return "called"


async def call() -> str:
    """Call the one who waits."""
    MET.set()
    return "called out"


def refuse() -> str:
    """Do nothing."""
    raise ValueError("not today")


async def judged(judge, prompt, completion, answer, state):
    return float("yes" in (await judge(prompt, completion, answer, state)).lower())


def judge_of(url):
    client = AsyncOpenAI(base_url=url, api_key="none", max_retries=0)
    rubric = vf.JudgeRubric(judge_client=client, judge_model="judge")
    rubric.add_reward_func(judged)
    return rubric


def raises(completion):
    raise KeyError("oops")


def nothing(completion):
    return None


def load_environment(kind="tools", **options):
    question = Dataset.from_list([{"question": "Guess my number.", "answer": ""}] * 4)
    if kind == "tools":
        return tools(**options)
    if kind == "till":
        return Till(dataset=sums(), rubric=vf.Rubric(funcs=[paid]), max_turns=4)
    if kind == "meeting":
        rubric = vf.Rubric(funcs=[right])
        return vf.ToolEnv(dataset=sums(), tools=[add, stay, call, refuse], rubric=rubric)
    if kind == "judge":
        return vf.SingleTurnEnv(dataset=sums(), rubric=judge_of(**options))
    if kind == "broken":
        return Broken(dataset=question, rubric=vf.Rubric(funcs=[hit]))
    if kind == "guess":
        return Guess(dataset=question, rubric=vf.Rubric(funcs=[hit]), max_turns=5)
    if kind == "forgets":
        return Forgets(dataset=question, rubric=vf.Rubric(funcs=[hit]), max_turns=5)
    if kind == "reasoning":
        return vf.ReasoningGymEnv("basic_arithmetic", num_train_examples=20, num_eval_examples=4)
    if kind in ("raises", "nothing"):
        return vf.SingleTurnEnv(dataset=sums(), rubric=vf.Rubric(funcs=[globals()[kind]]))
    if kind == "group":

        def best(completions) -> list[float]:
            return [1.0] * len(completions)

        return vf.SingleTurnEnv(dataset=sums(), rubric=vf.Rubric(funcs=[best]))
    if kind == "both":
        till = Till(dataset=sums(), rubric=vf.Rubric(funcs=[paid]), max_turns=4)
        return vf.EnvGroup([tools(), till], env_names=["sums", "till"])
    if kind == "held out":
        return vf.SingleTurnEnv(eval_dataset=sums(), rubric=vf.Rubric(funcs=[right]))
    if kind == "dies":

        def die(completion):
            os._exit(7)

        return vf.SingleTurnEnv(dataset=sums(), rubric=vf.Rubric(funcs=[die]))
    raise ValueError(f"no kind {kind!r}")
