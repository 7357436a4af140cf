"""Oracle demonstrations: what the warm start learns from, and why it never stops.

A demonstration is played in the same environment as every rollout and kept as a trajectory with
ids: the work, command by command, then commands that check it. Nearly all of them go on checking
until they end, which is the habit that GRPO is to break; a few end with TASK_COMPLETE, so that a
stop has some probability at all and can be reinforced. Nothing is sampled here: a written id has
logprob 0.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from fieldkit.errors import BadInput
from fieldkit.records import Action, ActionKind, Sampling, StopReason, Trajectory, Turn
from rollout.envs.shell import Environment, system_prompt
from rollout.synth.splits import Plan
from rollout.transcript import ChatRenderer

WRITTEN = Sampling(temperature=0.0, max_tokens=0, top_p=1.0, top_k=0, min_p=0.0)
"""The sampling of a text that was written, not sampled."""


@dataclass(frozen=True)
class DemoSettings:
    """How demonstrations behave."""

    stop_share: float = 0.06
    """Share of demonstrations whose last turn is TASK_COMPLETE; the others go on checking."""
    max_checks: int = 4
    """Turns after the work: 1 to this many, evenly; a stop takes the place of the last one."""
    look_share: float = 0.3
    """Share of demonstrations that look at a file before the work."""


STOP = "TASK_COMPLETE"


def block(command: str) -> str:
    """A command as the policy is to write it."""
    return f"```bash\n{command}\n```"


def script(plan: Plan, settings: DemoSettings, rng: random.Random) -> list[str]:
    """The replies of one demonstration, in order; the last is a check or `STOP`."""
    commands: list[str] = []
    if rng.random() < settings.look_share:
        commands.append(rng.choice(plan.pieces[0].looks))
    for piece in plan.pieces:
        commands.extend(piece.commands)
    checks = [c for piece in plan.pieces for c in piece.checks] + ["ls"]
    commands.extend(rng.choice(checks) for _ in range(rng.randint(1, settings.max_checks)))
    replies = [block(c) for c in commands]
    if rng.random() < settings.stop_share:
        replies[-1] = STOP
    return replies


async def demonstrate(
    plan: Plan,
    number: int,
    environment: Environment,
    renderer: ChatRenderer,
    settings: DemoSettings,
    rng: random.Random,
) -> Trajectory:
    """Play one demonstration. Raises `BadInput` where the oracle does not pass its own task."""
    task = plan.task
    transcript = renderer.start(system_prompt(task.env), task.prompt)
    turns: list[Turn] = []
    await environment.reset(task)
    try:
        for reply in script(plan, settings, rng):
            ids = renderer.encode_reply(reply)
            prompt_ids = transcript.prompt_ids
            transcript.add_completion(ids)
            observation: str | None = None
            exit_code: int | None = None
            action = Action(ActionKind.DONE, "")
            if reply != STOP:
                action = Action(ActionKind.RUN, reply.removeprefix("```bash\n")[:-4])
                result = await environment.step(action.command)
                observation, exit_code = result.observation, result.exit_code
                transcript.add_observation(result.observation)
            turns.append(
                Turn(
                    prompt_ids=prompt_ids,
                    completion_ids=ids,
                    logprobs=(0.0,) * len(ids),
                    text=reply,
                    action=action,
                    observation=observation,
                    exit_code=exit_code,
                    reward=None,
                    finish_reason="stop",
                    policy_version="oracle",
                    seed=0,
                    seconds=0.0,
                )
            )
        grade = await environment.grade()
    finally:
        await environment.close()
    if not grade.passed:
        why = "; ".join(f"{r.kind} {r.path}: {r.detail}" for r in grade.results if not r.passed)
        raise BadInput(f"{task.task_id}: the oracle does not pass its own task ({why})")
    return Trajectory(
        task_id=task.task_id,
        k=number,
        seed=0,
        adapter_sha="oracle",
        sampling=WRITTEN,
        turns=tuple(turns),
        stop_reason=StopReason.TASK_COMPLETE
        if turns[-1].action.kind is ActionKind.DONE
        else StopReason.MAX_TURNS,
        grade=grade,
        reward=1.0,
        metrics={},
    )
