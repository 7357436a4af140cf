"""What `grpo env check` finds of an environment that is no class, by what its worlds answer.

Servers are played as they are. The faults of faulty.py are played through the same door, because
every style has the same worlds.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fieldkit.errors import Unavailable
from rollout.envs.configured import environment
from rollout.envs.env_settings import EnvSettings
from scripts.base.checkout import ROOT
from scripts.environments.env_check import Checked
from scripts.environments.freeze import row_tasks, seed_tasks
from scripts.environments.world_check import WorldTrials, check_world
from tests.fieldkit.answering import answering, said
from tests.rollout.envs.openenv.openenv_local import DOUBLE, THIS_PYTHON, stopped

HERE = Path(__file__).parent
GUESSES = [("guess", {"number": n}) for n in range(1, 7)]


def of(settings: EnvSettings, **more: Any) -> Checked:
    made = environment("own", settings, ROOT)
    trials = WorldTrials(made, seed_tasks("own", 8, 0), episodes=8)
    return check_world("own", replace(trials, **more), lambda line: None, lambda *_: None)


def of_class(name: str, **more: Any) -> Checked:
    return of(EnvSettings(f"{HERE}/faulty.py:{name}", "reward >= 1", ends="over"), **more)


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with stopped(monkeypatch):
        yield


def served(app: str, **other: Any) -> EnvSettings:
    how: dict[str, Any] = {"style": "openenv", "python": str(THIS_PYTHON), "call_seconds": 10.0}
    return EnvSettings("", "reward > 0.5", serve=f"{DOUBLE}:{app}", **{**how, **other})


def test_a_sound_server_has_no_finding_but_figures(servers: None) -> None:
    found = of(served("app"))
    assert found.findings == ()
    assert found.sound
    figures = found.figures
    assert [tool["function"]["name"] for tool in figures["tools"]] == ["guess"]
    assert figures["sessions"] == 64
    assert figures["random"]["episodes"] == 8
    assert figures["random"]["lowest"] < figures["random"]["highest"]
    assert figures["empty"]["passed"] is False
    assert 0 < figures["step_ms"] <= figures["slowest_step_ms"]


def test_a_server_with_fewer_sessions_than_a_run_plays_is_a_warning(servers: None) -> None:
    [warning] = of(served("two")).findings
    assert warning.text.startswith("it has 2 sessions, and a run plays up to 64 episodes at once")
    [warning] = of(served("one"), wants=4).findings
    assert warning.text.startswith("it has 1 session, and a run plays up to 4")


def test_tools_without_a_description_of_their_arguments_are_named(servers: None) -> None:
    texts = [f.text for f in of(served("tools")).findings]
    assert "tool guess: its argument number has no description" in texts


def test_a_step_that_fails_is_an_error_that_names_what_was_asked(servers: None) -> None:
    found = of(served("app", config={"fault": "step:hang"}, call_seconds=0.5))
    assert not found.sound
    [error] = found.findings
    assert "step: no answer within 0.5 s" in error.text


def test_a_server_that_is_not_there_is_no_finding_but_unavailable() -> None:
    with pytest.raises(Unavailable, match="is the server running"):
        of(EnvSettings("", "reward > 0.5", style="openenv", url="http://127.0.0.1:9"))


def test_a_reset_that_raises_is_an_error_as_in_a_class(servers: None) -> None:
    [error] = of(served("app", config={"fault": "reset:raise"})).findings
    assert error.text.endswith("reset: the ball is lost")


@pytest.mark.parametrize("when", ["reset", "step"])
def test_a_server_that_ends_itself_is_an_error_with_its_exit_code_and_a_log_that_stays(
    when: str, servers: None
) -> None:
    found = of(served("app", config={"fault": f"{when}:die"}))
    [error] = found.findings
    assert f"/ws: {when}: the server hung up" in error.text
    said = re.search(
        r"; its server ended \(exit code 7\); its log (\S+) ends with: .*lost", error.text
    )
    assert said, error.text
    log = Path(said[1])
    assert "the board is lost" in log.read_text(encoding="utf-8")
    shutil.rmtree(log.parents[1])


def test_a_sound_check_leaves_no_file(
    servers: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert of(served("app")).sound
    assert [*tmp_path.iterdir()] == []


def test_a_column_that_reset_needs_is_named_with_what_gives_it(servers: None) -> None:
    [error] = of(served("app", config={"fault": "reset:needs"})).findings
    assert error.text.endswith(
        "arguments: 'level' and 'size'; give `level` and `size` as a column of every row, with"
        " `--rows FILE`, or in `config` of [envs.own] in run.toml"
    )


@pytest.mark.parametrize(
    ("name", "level", "says"),
    [
        ("Chance", "warning", "in another session gave something else: reply"),
        ("Keeps", "warning", "gave something else: reply"),
        ("Begins", "error", "reset said 'It is "),
        ("Shares", "warning", "two episodes share state: beside another one it"),
        ("Gives", "error", "an episode without a call passes"),
        ("NoNumber", "error", "which is not a reward"),
    ],
)
def test_a_fault_of_a_world_is_found_without_its_code(name: str, level: str, says: str) -> None:
    assert any(f.level == level and says in f.text for f in of_class(name).findings)


def test_a_perfect_episode_is_played_and_one_that_does_not_pass_is_an_error() -> None:
    assert of_class("Sound", perfect=GUESSES).figures["perfect"]["passed"]
    found = of_class("Sound", perfect=[("read", {})])
    [error] = [f.text for f in found.findings if f.level == "error"]
    assert error == "the perfect episode does not pass: {'reward': 0.0}"


def test_the_longest_texts_are_kept_without_the_tools() -> None:
    rows = [{"prompt": text, "answer": 1} for text in ("Short. ", "A long one. ", "Long. ")]
    longest = of_class("AnswersMuch", tasks=row_tasks("own", rows, "rows")).figures["longest"]
    assert longest == {
        "prompt": [{"role": "user", "content": "A long one. word "}],
        "answer": "word " * 200,
    }


def test_a_model_plays_the_same_worlds() -> None:
    replies = [said("\n".join(f"guess: {n}" for n in range(1, 7)))]
    with answering(replies) as endpoint:
        found = of_class("Sound", endpoint=endpoint.base_url, model="m", turns=2)
    assert found.figures["model"]["mean"] == 1.0
    assert endpoint.asked[0]["messages"][-1]["content"] == "Find a number from 1 to 6."


def test_functions_are_played_with_rows_that_hold_their_prompts(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text(
        "def double(x: int) -> int:\n"
        '    """Double a number.\n\n    Args:\n        x: the number\n    """\n'
        "    return 2 * x\n"
        "def right(completions, answer, **row):\n"
        "    return [float(str(answer[0]) in str(c)) for c in completions]\n"
    )
    settings = EnvSettings(
        f"{tmp_path}/tools.py:double",
        "right == 1",
        rewards={f"{tmp_path}/tools.py:right": 1.0},
    )
    rows = [{"prompt": f"Twice {n}? ", "answer": 2 * n} for n in range(1, 5)]
    found = of(settings, tasks=row_tasks("own", rows, "rows"))
    assert found.sound
    assert found.figures["random"]["highest"] == 1.0
