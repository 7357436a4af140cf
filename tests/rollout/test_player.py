"""Episodes in the real sandbox: how each one ends, and what its record holds."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fieldkit.errors import BadInput, Unavailable
from fieldkit.records import ActionKind, StopReason, Task, Trajectory, segments
from rollout.engine.client import NoAnswer
from rollout.envs.base import Reply, Step, World
from rollout.envs.shell import SHELL
from rollout.envs.shell_protocol import NO_ACTION_OBSERVATION
from rollout.flight import Attempt, fly
from rollout.player import LateCalls
from rollout.settings import EpisodeSettings
from tests.rollout.scripted import (
    FailingSampler,
    Script,
    ScriptedSampler,
    bash,
    player,
    renderer,
    replies,
    write_task,
)

WORK = bash("echo done > alpha.txt")


def play(tmp_path: Path, script: Script, **limits: float) -> Trajectory:
    settings = EpisodeSettings(**{"max_turns": 4, "max_new_tokens": 64, **limits})  # type: ignore[arg-type]
    one = player(tmp_path, script, settings=settings)
    return asyncio.run(one.play(write_task("alpha"), 2, seeds=lambda turn: 1000 + turn))


def test_a_task_that_is_done_and_said_to_be_done_passes(tmp_path: Path) -> None:
    t = play(tmp_path, replies(WORK, "TASK_COMPLETE"))
    assert t.stop_reason is StopReason.TASK_COMPLETE
    assert t.grade.passed
    assert len(t.turns) == 2
    assert t.reward == pytest.approx(1 - 0.2 * 2 / 12)


def test_the_turn_that_stops_was_not_answered(tmp_path: Path) -> None:
    last = play(tmp_path, replies(WORK, "TASK_COMPLETE")).turns[-1]
    assert last.action.kind is ActionKind.DONE
    assert last.observation is None
    assert last.exit_code is None


def test_the_prose_sentinel_stops_as_the_word_does(tmp_path: Path) -> None:
    t = play(tmp_path, replies(WORK, bash('echo "Task complete."')))
    assert t.stop_reason is StopReason.TASK_COMPLETE
    assert len(t.turns) == 2


def test_a_block_beside_the_word_runs_before_the_episode_stops(tmp_path: Path) -> None:
    t = play(tmp_path, replies(f"{WORK}\nTASK_COMPLETE"))
    assert t.stop_reason is StopReason.TASK_COMPLETE
    assert len(t.turns) == 1
    assert t.grade.passed
    assert t.turns[0].observation == "(no output)"


def test_a_redirected_sentinel_is_a_command_that_the_grader_sees(tmp_path: Path) -> None:
    t = play(tmp_path, replies(bash('echo "Task complete: done" > alpha.txt')))
    assert t.stop_reason is StopReason.MAX_TURNS
    assert t.grade.passed


def test_the_command_of_the_last_turn_runs_and_its_answer_is_kept(tmp_path: Path) -> None:
    t = play(tmp_path, replies(bash("ls"), bash("ls"), bash("ls"), f"{WORK}"))
    assert t.stop_reason is StopReason.MAX_TURNS
    assert len(t.turns) == 4
    assert t.grade.passed
    assert t.turns[-1].observation == "(no output)"


def test_a_stop_on_the_last_turn_is_a_stop(tmp_path: Path) -> None:
    t = play(tmp_path, replies(bash("ls"), "TASK_COMPLETE"), max_turns=2)
    assert t.stop_reason is StopReason.TASK_COMPLETE


def test_a_reply_without_a_command_counts_and_is_told_the_form(tmp_path: Path) -> None:
    t = play(tmp_path, replies("Let me think.", WORK, "TASK_COMPLETE"))
    assert t.turns[0].observation == NO_ACTION_OBSERVATION
    assert t.turns[0].exit_code is None
    assert len(t.turns) == 3
    assert t.metrics["no_action_turns"] == 1
    assert NO_ACTION_OBSERVATION in renderer().decode(t.turns[1].prompt_ids)


def test_a_failing_command_is_data(tmp_path: Path) -> None:
    t = play(tmp_path, replies(bash("cat missing.txt"), "TASK_COMPLETE"))
    assert t.turns[0].exit_code == 1
    assert "[exit 1]" in (t.turns[0].observation or "")
    assert t.metrics["commands_failed"] == 1
    assert not t.grade.passed


def test_a_context_that_fills_up_ends_the_episode(tmp_path: Path) -> None:
    opening = len(play(tmp_path, replies("TASK_COMPLETE")).turns[0].prompt_ids)
    t = play(tmp_path, replies(bash("seq 60")), max_turns=12, max_model_len=opening + 300)
    assert t.stop_reason is StopReason.CONTEXT_FULL
    assert 0 < len(t.turns) < 12
    assert all(len(x.prompt_ids) + 64 <= opening + 300 for x in t.turns)


def test_a_task_whose_opening_does_not_fit_is_no_rollout(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"alpha.*max_model_len = 70"):
        play(tmp_path, replies(WORK), max_model_len=70)


def test_an_opening_that_only_the_world_knows_and_that_does_not_fit_ends_the_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No check at the start can find it, and the others of the step are worth keeping."""
    known_late = replace(SHELL, opening=None)
    monkeypatch.setattr("rollout.player.environment_of", lambda task: known_late)
    t = play(tmp_path, replies(WORK), max_model_len=70)
    assert (t.turns, t.stop_reason) == ((), StopReason.CONTEXT_FULL)
    assert not t.grade.passed


def test_an_episode_whose_commands_take_too_long_is_ended(tmp_path: Path) -> None:
    ticks = iter(range(10_000))
    slow = player(
        tmp_path,
        replies(bash("true")),
        settings=EpisodeSettings(max_new_tokens=64, episode_seconds=3),
        clock=lambda: float(next(ticks)),
    )
    t = asyncio.run(slow.play(write_task("alpha"), 0, seeds=lambda turn: turn))
    assert t.stop_reason is StopReason.TIME_LIMIT
    assert len(t.turns) == 3


def test_a_busy_engine_ends_no_episode(tmp_path: Path) -> None:
    now = 0.0

    class Busy(ScriptedSampler):
        async def sample(self, *args: object) -> object:  # type: ignore[override]
            nonlocal now
            now += 1000
            return await super().sample(*args)  # type: ignore[arg-type]

    one = player(tmp_path, Busy(replies(WORK, "TASK_COMPLETE")), clock=lambda: now)  # type: ignore[arg-type]
    t = asyncio.run(one.play(write_task("alpha"), 0, seeds=lambda turn: turn))
    assert t.stop_reason is StopReason.TASK_COMPLETE
    assert t.metrics["sampling_seconds"] == 2000
    assert t.metrics["command_seconds"] == 0


def test_a_reply_cut_at_its_length_is_not_half_a_command(tmp_path: Path) -> None:
    long = bash("rm -f notes.txt " + "&& echo words " * 60)
    t = play(tmp_path, replies(long, "TASK_COMPLETE"))
    assert t.turns[0].finish_reason == "length"
    assert t.turns[0].action.kind is ActionKind.NONE
    assert t.metrics["cut_turns"] == 1
    assert any(r.path == "notes.txt" and r.passed for r in t.grade.results)


def test_what_was_sampled_is_what_is_recorded(tmp_path: Path) -> None:
    sampler = ScriptedSampler(replies(bash("cat notes.txt"), WORK, "TASK_COMPLETE"))
    one = player(tmp_path, sampler)
    t = asyncio.run(one.play(write_task("alpha"), 2, seeds=lambda turn: 1000 + turn))
    assert [x.prompt_ids for x in t.turns] == sampler.prompts
    assert [x.seed for x in t.turns] == sampler.seeds == [1000, 1001, 1002]
    assert t.seed == 999
    assert t.k == 2
    assert len(segments(t.turns)) == 1
    assert t.turns[0].observation == "about alpha"
    assert t.metrics["tokens"] == sum(len(x.completion_ids) for x in t.turns)
    assert t.metrics["context_tokens"] == len(t.turns[2].prompt_ids + t.turns[2].completion_ids)


def test_every_turn_is_told_while_the_episode_runs(tmp_path: Path) -> None:
    seen: list[str] = []
    one = player(tmp_path, replies(WORK, "TASK_COMPLETE"))
    asyncio.run(
        one.play(write_task("alpha"), 0, lambda turn: turn, on_turn=lambda t: seen.append(t.text))
    )
    assert seen == [WORK, "TASK_COMPLETE"]


def test_a_connection_that_breaks_twice_costs_nothing_but_time(tmp_path: Path) -> None:
    script = replies(WORK, "TASK_COMPLETE")
    broken = player(tmp_path, FailingSampler(script, "alpha", times=2))
    sound = player(tmp_path, script)
    task = write_task("alpha")
    assert asyncio.run(broken.play(task, 0, lambda turn: turn)) == asyncio.run(
        sound.play(task, 0, lambda turn: turn)
    )


def test_what_breaks_three_times_is_unavailable_and_never_a_reward(tmp_path: Path) -> None:
    broken = player(tmp_path, FailingSampler(replies(WORK), "alpha", times=3))
    with pytest.raises(Unavailable, match=r"task alpha, k = 0: failed 3 times.*closed"):
        asyncio.run(broken.play(write_task("alpha"), 0, lambda turn: turn))


def test_an_engine_that_did_not_answer_is_not_waited_for_again(tmp_path: Path) -> None:
    asked = []

    class Silent(ScriptedSampler):
        async def sample(self, *args: object) -> object:  # type: ignore[override]
            asked.append(args)
            raise NoAnswer("no answer in 9 attempts over 120 s", "Look at its log.")

    one = player(tmp_path, Silent(replies(WORK)))  # type: ignore[arg-type]
    with pytest.raises(NoAnswer, match=r"^no answer in 9 attempts over 120 s Look at its log\.$"):
        asyncio.run(one.play(write_task("alpha"), 0, lambda turn: turn))
    assert len(asked) == 1


def test_a_world_that_cannot_be_closed_is_played_again_and_does_not_end_the_phase(
    tmp_path: Path,
) -> None:
    one = player(tmp_path, replies(WORK, "TASK_COMPLETE"))
    made: list[Any] = []

    def world(task: Task) -> Any:
        made.append(one.worlds(task))
        return Stuck() if len(made) == 1 else made[-1]

    class Stuck:
        """Closes, and then says that it did not."""

        def __getattr__(self, name: str) -> object:
            return getattr(made[0], name)

        async def close(self) -> None:
            await made[0].close()
            raise Unavailable("the folder cannot be removed")

    once = replace(one, worlds=world)
    t = asyncio.run(once.play(write_task("alpha"), 0, lambda turn: turn))
    assert t.grade.passed
    assert len(made) == 2


def test_eight_episodes_that_end_allow_one_more_late_call() -> None:
    late = LateCalls()
    late.excuse("slow")
    late.excuse("slow")
    with pytest.raises(Unavailable, match=r"^slow\. 2 episodes of this phase ended so already$"):
        late.excuse("slow")
    for _ in range(7):
        late.earn()
    with pytest.raises(Unavailable):
        late.excuse("slow")
    late.earn()
    late.excuse("slow")
    with pytest.raises(Unavailable, match="3 episodes"):
        late.excuse("slow")


def test_a_night_of_good_episodes_does_not_excuse_an_environment_that_is_down() -> None:
    late = LateCalls()
    for _ in range(10_000):
        late.earn()
    for _ in range(8):
        late.excuse("slow")
    with pytest.raises(Unavailable):
        late.excuse("slow")


class TooSlow:
    """A shell in which no command has an answer in time."""

    def __init__(self, shell: World) -> None:
        self._shell = shell
        self.reset, self.grade, self.close = shell.reset, shell.grade, shell.close

    async def step(self, reply: Reply) -> Step:
        played = await self._shell.step(reply)
        return replace(played, late="envs.x: the tool wait", stop=StopReason.TIME_LIMIT)


def test_an_attempt_that_is_played_again_after_a_standstill_has_one_excuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollout.flight.STANDSTILL_SECONDS", -1.0)  # every look finds one
    shell = player(tmp_path, replies(WORK)).worlds
    one = player(tmp_path, replies(WORK), worlds=lambda task: TooSlow(shell(task)))
    (t,) = asyncio.run(fly([Attempt(write_task("alpha"), 0)], one, lambda a: lambda turn: turn))
    assert (t.stop_reason, t.metrics["late"]) == (StopReason.TIME_LIMIT, 1.0)
    one.late.excuse("a second one")
    with pytest.raises(Unavailable, match=r"a third one\. 2 episodes of this phase ended so"):
        one.late.excuse("a third one")
