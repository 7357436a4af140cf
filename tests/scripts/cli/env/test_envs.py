"""`grpo env …` as a person types it, and docs/environments.md block by block."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from fieldkit.process.ledger import LEDGER_FILE
from fieldkit.process.owned import marked
from rollout.envs.configured import register_environments
from rollout.tasks import check_disjoint, read_tasks
from scripts.base.checkout import ROOT
from scripts.run.config import read_config
from tests.rollout.envs.openenv.openenv_local import DOUBLE, THIS_PYTHON, launch, local
from tests.scripts.typed import BAD_INPUT, grpo
from tests.tiny_model import make_tiny_model

FAULTY = ROOT / "tests" / "scripts" / "environments" / "faulty.py"
PAGE = (ROOT / "docs" / "environments.md").read_text()
_BLOCK = r"^```(python|bash|toml|console)\n(.*?)^```$"
_ALL = re.findall(_BLOCK, PAGE, re.DOTALL | re.MULTILINE)
CLASS, ORACLE = (text for language, text in _ALL if language == "python")
BLOCKS = {language: text for language, text in _ALL if language != "python"}


def test_every_block_of_the_page_does_what_it_says(tmp_path: Path) -> None:
    assert PAGE.count("\n```\n") == len(_ALL) == 2 + len(BLOCKS) == 5
    (tmp_path / "counter.py").write_text(CLASS)
    ended = subprocess.run(
        ["bash", "-e", "-c", BLOCKS["bash"]], cwd=tmp_path, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    assert "random policy: 32 episodes" in ended.stdout
    assert ended.stdout.endswith("The counter is 2.\nreward: 0\n")
    toml = BLOCKS["toml"].replace('"counter', f'"{tmp_path}/counter')
    (tmp_path / "run.toml").write_text(toml)
    config = read_config(tmp_path / "run.toml")
    try:
        pool, heldout = Path(config.data.pool), Path(config.data.heldout)
        assert len(read_tasks(pool)) == 64
        check_disjoint(pool, heldout)
        listed = grpo("env", "list", "--run", tmp_path)
        assert f"counter: trl {tmp_path}/counter.py:Counter, passes: reward >= 1" in listed.stdout
    finally:
        register_environments({}, ROOT)


def test_a_class_without_data_is_a_run_after_the_commands_of_the_page(tmp_path: Path) -> None:
    """All but the last two of them, which make the warm start and play the night."""
    (tmp_path / "counter.py").write_text(CLASS)
    (tmp_path / "counter_oracle.py").write_text(ORACLE)
    new, check, warm_start, run = BLOCKS["console"].splitlines()
    assert warm_start.startswith("grpo sft adapters/counter --oracle runs/counter/pool.jsonl")
    assert run == "grpo run counter --set model.adapter=adapters/counter"
    folder = tmp_path / "run"
    typed = f"{new}\n{check}".replace("new counter", f"new {folder}")
    typed = typed.replace("runs/counter", str(folder)).replace("--run counter", f"--run {folder}")
    typed = typed.replace("=counter_oracle.py", f"={tmp_path}/counter_oracle.py")
    ended = subprocess.run(
        ["bash", "-e", "-c", typed], cwd=tmp_path, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    assert re.search(r"oracle\W+256\D+256", ended.stdout), ended.stdout
    checked = grpo("doctor", folder)
    assert "256 in the pool, 48 held out, none in both" in checked.stdout


STYLES = ROOT / "docs" / "environments-styles.md"
SAID = {
    "TRL class": (
        "random policy: 32 episodes",
        "Guess my number.\n\nHigher.\nreward: -0.1\n",
        "heldout.jsonl: 48 tasks",
    ),
    "OpenEnv server": ("random policy: 32 episodes", "\nreward: -0.1\nnot passed\n"),
    "verifiers package": ("pool.jsonl: ", "\nreward: "),
}
"""Of each style on that page, what its commands print."""


@pytest.mark.parametrize(
    "style",
    ["TRL class", *(pytest.param(s, marks=pytest.mark.envs) for s in [*SAID][1:])],
)
def test_a_style_on_the_page_of_the_three_is_put_into_a_run_as_it_says(
    style: str, tmp_path: Path
) -> None:
    """Typed as it stands, but for the folders that it writes to."""
    page = STYLES.read_text()
    block = page.partition(f"## {style}")[2].partition("```bash\n")[2].partition("```")[0]
    block = block.replace("runs/", f"{tmp_path}/")
    block = re.sub(r"(grpo new|--run) (guess-\w+)", rf"\1 {tmp_path}/\2", block)
    ended = subprocess.run(["bash", "-e", "-c", block], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    for said in SAID[style]:
        assert said in ended.stdout


def test_the_errors_that_the_page_explains_are_those_of_the_check() -> None:
    folder = ROOT / "scripts" / "environments"
    files = ("tryout.py", "contract.py", "env_check.py", "earnings.py", "world_check.py")
    source = " ".join((folder / name).read_text() for name in files)
    table = PAGE.partition("## What the errors")[2].partition("\n## ")[0]
    named = re.findall(r"^\| (?:… )?([a-z].+?) \|", table, re.M)
    assert len(named) > 5
    for said in named:
        begins = said.split(" worth ")[0].split(" 10 s")[0].split(" gave ")[0]
        assert begins in source or begins == "the check says", said


def test_a_faulty_environment_is_exit_2_with_its_line() -> None:
    ended = grpo("env", "check", f"{FAULTY}:Raises", "--episodes", "2")
    assert ended.returncode == BAD_INPUT
    assert f"{FAULTY}:" in ended.stdout
    assert "error: reset raised KeyError" in ended.stdout
    assert "1 error(s)" in ended.stderr


def test_an_environment_of_a_run_is_measured_with_its_model_and_limits(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model")

    def checked(model: str, most: int) -> subprocess.CompletedProcess[str]:
        (tmp_path / "run.toml").write_text(
            f'[model]\npath = "{model}"\n[engine]\nmax_model_len = {most}\n'
            f'[envs.much]\nuse = "{FAULTY}:TellsMuch"\npasses = "reward >= 1"\nends = "over"\n'
        )
        return grpo("env", "check", "much", "--run", tmp_path, "--episodes", "8")

    full = checked(str(model), 200)
    assert full.returncode == BAD_INPUT
    assert "of rollout.max_new_tokens = 96 exceed engine.max_model_len = 200" in full.stdout
    assert re.search(r"^context: the longest opening takes \d+ of 200 tokens", full.stdout, re.M)
    absent = checked("some/where", 200)
    assert absent.returncode == 0, absent.stderr
    assert "is not measured: some/where is not here yet; `grpo doctor" in absent.stderr


def test_functions_are_checked_with_their_rows_and_reward_functions(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text(
        "def double(x: int) -> int:\n"
        '    """Double a number.\n\n    Args:\n        x: the number\n    """\n'
        "    return 2 * x\n"
        "def right(completions, answer, **row):\n"
        "    return [float(str(answer[0]) in str(c)) for c in completions]\n"
    )
    (tmp_path / "rows.jsonl").write_text('{"prompt": "Twice 21? ", "answer": 42}\n')
    words = ("env", "check", f"{tmp_path}/tools.py:double", "--episodes", "8")
    more = ("--reward", f"{tmp_path}/tools.py:right", "--passes", "right == 1")
    ended = grpo(*words, *more, "--rows", tmp_path / "rows.jsonl")
    assert ended.returncode == 0, ended.stderr
    assert 'double {"x": integer}: Double a number.' in ended.stdout
    assert "random policy: 8 episodes" in ended.stdout
    (tmp_path / "odd.jsonl").write_text('{"answer": 1}\n{"answer": NaN}\n')
    odd = grpo(*words, *more, "--rows", tmp_path / "odd.jsonl")
    assert "odd.jsonl:2: a number is NaN or infinite" in odd.stderr
    bare = grpo(*words, *more)
    assert bare.returncode == BAD_INPUT
    assert "functions have no reset() that gives a prompt" in bare.stderr


def test_a_server_of_a_run_is_checked_on_its_pool_and_ended(tmp_path: Path) -> None:
    (tmp_path / "pool.jsonl").write_text('{"environment": "guess", "prompt": "Win. "}\n')
    (tmp_path / "run.toml").write_text(
        f'[data]\npool = "{tmp_path}/pool.jsonl"\n[envs.guess]\nserve = "{DOUBLE}:two"\n'
        f'python = "{THIS_PYTHON}"\npasses = "reward > 0"\n'
    )
    ended = grpo("env", "check", "guess", "--run", tmp_path, "--episodes", "8")
    assert ended.returncode == 0, ended.stderr
    assert "warning: it has 2 sessions" in ended.stdout
    assert "sessions at once: 2" in ended.stdout
    log = re.search(r"\(log (.+)\)", ended.stderr)
    assert log is not None
    assert [p.pid for p in marked() if p.ledger == Path(log[1]).parents[1] / LEDGER_FILE] == []


def test_a_servers_program_is_checked_with_its_own_python(tmp_path: Path) -> None:
    words = ("env", "check", f"{DOUBLE}:two", "--episodes", "8", "--passes", "reward > 0")
    ended = grpo(*words, "--python", THIS_PYTHON)
    assert ended.returncode == 0, ended.stderr
    assert "sessions at once: 2" in ended.stdout
    (tmp_path / "server.py").write_text("import openenv\n")
    as_class = grpo("env", "check", f"{tmp_path}/server.py:app")
    assert as_class.returncode == BAD_INPUT
    assert "needs the package 'openenv'" in as_class.stderr
    assert "`--python PYTHON`" in as_class.stderr


@pytest.mark.envs
def test_a_verifiers_file_is_checked(tmp_path: Path) -> None:
    file = ROOT / "docs" / "styles" / "guess_verifiers.py"
    ended = grpo("env", "check", file, "--passes", "reward > 0.5", "--episodes", "8")
    assert ended.returncode == 0, ended.stderr
    assert 'guess {"number": integer}: Guess the number.' in ended.stdout
    assert "error" not in ended.stdout
    unsaid = grpo("env", "check", file)
    assert unsaid.returncode == BAD_INPUT
    assert "say which part of the reward means passed" in unsaid.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("check", "clawgym"), "`grpo tasks check FILE --play`"),
        (("check", "nowhere"), "`grpo env new nowhere` makes one"),
        (("check", "nowhere.py"), "nowhere.py: no such file"),
        (("check", f"{FAULTY}"), f"say which: {FAULTY}:Sound"),
        (("check", f"{FAULTY}:Sound", "--passes", "good"), "'good' compares no part"),
        (("tasks", f"{FAULTY}:Sound", "--out", "/nowhere/x.jsonl"), "with --rows"),
        (("check", f"{FAULTY}:Sound", "--rows", f"{FAULTY}"), "faulty.py:1:"),
    ],
)
def test_a_wrong_word_is_named_with_what_to_type_instead(words: tuple[str, ...], says: str) -> None:
    ended = grpo("env", *words)
    assert ended.returncode == BAD_INPUT
    assert says in ended.stderr


def test_an_episode_is_played_through_a_pipe() -> None:
    program = shutil.which("grpo")
    assert program
    ended = subprocess.run(
        [program, "env", "play", f"{FAULTY}:Sound", "--passes", "reward >= 1", "--ends", "over"],
        input="hello\n" + "".join(f"guess: {n}\n" for n in range(1, 7)),
        capture_output=True,
        text=True,
        env=dict(os.environ),
        check=True,
    )
    assert "(no call: begin the line with one of guess, read" in ended.stdout
    assert ended.stdout.endswith("right\n(the environment ended the episode)\nreward: 1\npassed\n")


def typed_in(lines: list[str], *words: str | Path) -> subprocess.CompletedProcess[str]:
    program = shutil.which("grpo")
    assert program
    return subprocess.run(
        [program, "env", "play", *map(str, words)],
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_server_of_a_run_is_played_and_ended(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(
        f'[envs.guess]\nserve = "{DOUBLE}:app"\npython = "{THIS_PYTHON}"\npasses = "reward > 0"\n'
    )
    ended = typed_in([f"guess: {n}" for n in range(1, 11)], "guess", "--run", tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "guess {" in ended.stdout  # the tools, as a policy is told of them
    last = r"Right\.\n\(the episode ended: ENV_DONE\)\nreward: [\d.]+\npassed\n$"
    assert re.search(last, ended.stdout)
    log = re.search(r"\(log (.+)\)", ended.stderr)
    assert log is not None
    assert [p.pid for p in marked() if p.ledger == Path(log[1]).parents[1] / LEDGER_FILE] == []


def test_a_server_at_an_address_is_played_and_the_end_of_the_input_ends_it(tmp_path: Path) -> None:
    with local(launch(), tmp_path) as server:
        words = (asyncio.run(server.address()), "--passes", "reward > 0")
        ended = typed_in(["guess: 11", "a thought"], *words)
        assert ended.returncode == 0, ended.stderr
        assert "(the episode ended: TASK_COMPLETE)" in ended.stdout
        assert ended.stdout.endswith("not passed\n")
        unsaid = typed_in([], words[0])
    assert unsaid.returncode == BAD_INPUT
    assert "say which part of the reward means passed" in unsaid.stderr


@pytest.mark.envs
def test_a_verifiers_file_is_played(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "environments-verifiers.md").read_text(encoding="utf-8")
    (tmp_path / "sums.py").write_text(page.split("```python\n")[1].split("```")[0])
    ended = typed_in(["It is 0, 2, 4, 6 or 8."], tmp_path / "sums.py", "--passes", "right == 1")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("What is ")
    assert "right: " in ended.stdout
