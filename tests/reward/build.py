"""Small records for the reward tests: only what a test talks about has to be said."""

from __future__ import annotations

from collections.abc import Sequence

from fieldkit.eval.grade import AssertionResult, Grade
from fieldkit.records import (
    Action,
    ActionKind,
    RolloutGroup,
    Sampling,
    Signal,
    StopReason,
    Trajectory,
    Turn,
)
from fieldkit.training.advantages import group_advantages


def grade(passed: int, total: int) -> Grade:
    return Grade(
        tuple(AssertionResult("file_exists", f"f{i}", i < passed, "") for i in range(total))
    )


def parse_literal(text: str) -> Action:
    """Only TASK_COMPLETE stops; any other text is the command itself."""
    if text == "TASK_COMPLETE":
        return Action(ActionKind.DONE, "")
    return Action(ActionKind.RUN, text)


def parse_prose(text: str) -> Action:
    """Also stops at an echoed "Task complete."."""
    if text == 'echo "Task complete."':
        return Action(ActionKind.DONE, "")
    return parse_literal(text)


def turn(text: str) -> Turn:
    return Turn(
        prompt_ids=(1,),
        completion_ids=(2,),
        logprobs=(-0.5,),
        text=text,
        action=parse_literal(text),
        observation="(no output)",
        exit_code=0,
        reward=None,
        finish_reason="stop",
        policy_version="t-v0",
        seed=0,
        seconds=0.1,
    )


def trajectory(
    texts: Sequence[str], passed: int, total: int, reward: float, k: int = 0, task_id: str = "t"
) -> Trajectory:
    done = texts[-1] == "TASK_COMPLETE"
    return Trajectory(
        task_id=task_id,
        k=k,
        seed=0,
        adapter_sha="a",
        sampling=Sampling(1.0, 96, 1.0, 0, 0.0),
        turns=tuple(turn(t) for t in texts),
        stop_reason=StopReason.TASK_COMPLETE if done else StopReason.MAX_TURNS,
        grade=grade(passed, total),
        reward=reward,
        metrics={},
    )


def group(trajectories: Sequence[Trajectory], signal: Signal, step: int = 1) -> RolloutGroup:
    return RolloutGroup(
        step=step,
        env="clawgym",
        task_id=trajectories[0].task_id,
        trajectories=tuple(trajectories),
        advantages=group_advantages([t.reward for t in trajectories]),
        signal=signal,
    )
