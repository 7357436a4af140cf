"""Arms of any runs on the same tasks: found by name, refused unmatched, shown in four forms."""

from __future__ import annotations

import io
import json
import re
import shlex
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from scipy.stats import binomtest

from fieldkit.codec import read_trajectories
from fieldkit.errors import BadInput
from fieldkit.files.journal import Journal
from rollout.arm import BASE_ADAPTER, TRAJECTORIES, key_of
from rollout.envs.env_settings import EnvSettings
from scripts.base.checkout import ROOT
from scripts.cli.app import app
from scripts.compare.compare import Comparison, compare_arms, matched_arms
from scripts.compare.forms import html, markdown, plain, rich_page, sentences, tables
from scripts.evidence.conditions import NO_CONDITION, remarks
from scripts.phases.single_arm import settings_of
from scripts.prepare.presets import run_text
from scripts.run.config import DEVELOPMENT, RunConfig, read_config
from scripts.run.folder import RunFolder
from tests.scripts.evals import arm, write_eval
from tests.scripts.made_night import HELD_OUT, make_night, tasks
from tests.scripts.report.test_page import Page

STEPS = 2
NEWEST_SHA = f"sha-{STEPS}"


@pytest.fixture(scope="module")
def one_night(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A night that went well: 12 turns before, 3 after; of 24 tasks 2 lost and 4 won."""
    return make_night(tmp_path_factory.mktemp("compare"), n_steps=STEPS).folder.path


@pytest.fixture
def runs(one_night: Path, tmp_path: Path) -> Path:
    """A folder of two runs, `a` and `b`, whose evaluations match."""
    for name in ("a", "b"):
        run = RunFolder(shutil.copytree(one_night, tmp_path / "runs" / name))
        for step in range(STEPS + 1):  # where its weights would be
            run.adapter(step).mkdir()
    return tmp_path / "runs"


def change(run: Path, table: str, key: str, value: object) -> None:
    """The run as if it had been started with another value of one key."""
    edit(run, lambda manifest: manifest["config"][table].__setitem__(key, value))


def edit(run: Path, how: Any) -> None:
    manifest = json.loads((run / "manifest.json").read_text())
    how(manifest)
    (run / "manifest.json").write_text(json.dumps(manifest))


def evaluation_of(run: Path, sha: str) -> Path:
    found = [p for p in (run / "evals").iterdir() if sha in (p / "eval.json").read_text()]
    return found[0]


def refusal(*names: Path | str) -> str:
    with pytest.raises(BadInput) as caught:
        matched_arms([str(n) for n in names])
    return str(caught.value)


def told(*names: Path | str) -> str:
    """What a reader of the comparison is told beside it."""
    return " ".join(remarks(matched_arms([str(n) for n in names])))


# --- which arm is meant ---------------------------------------------------------------------------


def test_a_run_means_its_newest_adapter_and_warm_and_base_and_steps_are_named(runs: Path) -> None:
    found = compare_arms([f"{runs}/a@warm", f"{runs}/a", f"{runs}/b@base", f"{runs}/b@2"])
    assert list(found.arms) == ["a@warm", "a@2", "b@base", "b@2"]
    assert [row.passed for row in found.rows] == [10, 12, 0, 12]
    assert found.reference == "a@warm"


def test_an_adapter_that_grpo_eval_played_is_named_by_its_folder_and_is_no_warm_start() -> None:
    docs = ROOT / "docs"
    evaluated = docs / "default-night" / "development-0"
    for word in (str(evaluated), f"{evaluated}@warm"):
        found = compare_arms([f"{docs}/pool-size/pool-42@warm", word])
        assert list(found.arms) == ["pool-42@warm", "development-0"]
    assert sentences(found)[0].startswith("development-0 against pool-42@warm: ")


def test_where_the_newest_step_is_not_evaluated_the_one_before_is_taken_and_this_is_said(
    runs: Path,
) -> None:
    evaluation_of(runs / "b", NEWEST_SHA).rename(runs / "elsewhere")
    found = matched_arms([f"{runs}/a", f"{runs}/b"])
    assert list(found) == ["a@2", "b@warm"]
    assert any("step 2 is newer" in r and f"`grpo eval {runs}/b`" in r for r in remarks(found))
    change(runs / "b", "rollout", "max_turns", 6)
    assert "step 2 is newer" in refusal(runs / "a", runs / "b")


def test_runs_of_one_name_in_two_folders_are_told_apart_by_their_paths(runs: Path) -> None:
    shutil.copytree(runs / "a", runs / "more" / "a")
    found = matched_arms([f"{runs}/a", f"{runs}/more/a"])
    assert list(found) == [f"{runs}/a@2", f"{runs}/more/a@2"]


def test_a_folder_above_the_run_may_hold_an_at_sign(runs: Path) -> None:
    home = runs.parent / "me@work"
    runs.rename(home)
    assert list(matched_arms([f"{home}/a", f"{home}/b@base"])) == ["a@2", "b@base"]


def test_a_run_without_any_evaluation_names_the_command_that_plays_it(runs: Path) -> None:
    shutil.rmtree(runs / "b" / "evals")
    assert f"`grpo eval {runs}/b` plays" in refusal(runs / "a", runs / "b")
    assert f"`grpo eval {runs}/b` plays it" in refusal(runs / "a", f"{runs}/b@2")
    assert f"`grpo eval {runs}/b` plays it" in refusal(runs / "a", f"{runs}/b@base")


def test_where_a_run_leaves_the_base_out_the_command_that_plays_it_sets_that_too(
    runs: Path,
) -> None:
    evaluation_of(runs / "b", BASE_ADAPTER).rename(runs / "elsewhere")
    with open(runs / "b" / "run.toml", "a", encoding="utf-8") as f:
        f.write('[eval]\nbase = "never"\n')
    said = refusal(runs / "a", f"{runs}/b@base")
    assert f"`grpo eval {runs}/b --set eval.base=start` plays it" in said
    shutil.rmtree(RunFolder(runs / "b").adapter(0))
    said = refusal(runs / "a", f"{runs}/b@base")
    assert re.search(r'Set it to "start" in the copy: `mkdir .*` and `grpo run .*` play it', said)


def test_a_run_that_was_not_started_names_the_command_that_starts_it(runs: Path) -> None:
    (runs / "b" / "manifest.json").unlink()
    assert f"`grpo run {runs}/b`" in refusal(runs / "a", runs / "b")


def test_a_step_on_the_way_that_was_not_evaluated_says_what_there_is_and_how_to_play_it(
    runs: Path,
) -> None:
    said = refusal(runs / "a", f"{runs}/b@1")
    assert "there are: warm, 2" in said
    assert f"`grpo eval {runs}/b --step 1` plays it" in said


def test_what_a_copy_without_weights_cannot_play_is_not_offered(runs: Path) -> None:
    """As of a committed run: the run is played again instead, under another name."""
    for step in range(STEPS + 1):
        RunFolder(runs / "b").adapter(step).rmdir()
    evaluation_of(runs / "b", "base").rename(runs / "elsewhere")
    for wanted in ("1", "base"):
        said = refusal(runs / "a", f"{runs}/b@{wanted}")
        assert "(there are: warm, 2), and this copy of the run has no weights" in said
        assert "grpo eval" not in said
        assert f"`grpo run {runs}/b-again` play it again" in said


def test_an_arm_whose_weights_are_not_here_is_not_offered_to_be_played_again(runs: Path) -> None:
    for step in range(STEPS + 1):
        RunFolder(runs / "b").adapter(step).rmdir()
    change(runs / "b", "rollout", "max_turns", 6)
    said = refusal(runs / "a", runs / "b")
    assert "this copy of the run has no weights to play b@2 with" in said
    assert f"`grpo run {runs}/b-again` play it again" in said
    assert "[model] adapter" not in said
    evaluation_of(runs / "b", NEWEST_SHA).rename(runs / "elsewhere")
    said = refusal(runs / "a", runs / "b")
    assert "step 2 is newer, and this copy of the run does not have it." in said
    assert "grpo eval" not in said


@pytest.mark.parametrize(
    ("name", "says"),
    [("b@wram", "'wram' is no arm"), ("b@3", "steps 0 to 2"), ("c", "no such run")],
)
def test_a_name_that_is_no_arm_is_refused(runs: Path, name: str, says: str) -> None:
    assert says in refusal(runs / "a", runs / name)


def test_an_adapters_folder_is_answered_with_the_name_of_its_arm(runs: Path) -> None:
    adapter = runs / "b" / "step-002" / "adapter"
    adapter.mkdir(parents=True, exist_ok=True)
    (adapter / "adapter_config.json").write_text("{}")
    assert f"{runs}/b@2" in refusal(runs / "a", adapter)
    adapter.rename(runs / "loose")
    assert "`grpo run NAME --steps 0" in refusal(runs / "a", runs / "loose")


def test_one_arm_alone_and_one_arm_twice_are_refused(runs: Path) -> None:
    assert "at least two" in refusal(runs / "a")
    assert "named twice" in refusal(runs / "a", f"{runs}/a@2")


# --- unmatched conditions -------------------------------------------------------------------------


def test_other_held_out_tasks_are_counted_and_their_files_named(runs: Path, tmp_path: Path) -> None:
    few = make_night(tmp_path / "few", n_steps=STEPS, held_out=tasks(14)).folder.path
    RunFolder(few).adapter(STEPS).mkdir()
    said = refusal(runs / "a", few)
    assert "held-out tasks: 24 (" in said
    assert f"14 ({tmp_path}/few/heldout.jsonl) in night@2; 14 are in both" in said
    assert f"cp {runs}/a/run.toml {runs}/night-2-again/" in said
    assert f'adapter = "{few}/step-002/adapter"' in said
    assert f"then compare with {runs}/night-2-again@warm" in said


def made_by_eval(run: Path, *given: str) -> None:
    """The run's folder as `grpo eval --out` would have made it, with these settings."""
    tasks_file = Path(json.loads((run / "manifest.json").read_text())["data"]["heldout"]["path"])
    own = settings_of(run / "elsewhere", "smol", tasks_file, 0, None)
    (run / "run.toml").write_text(run_text("smol", assignments=[*own, *given]))


def test_what_does_not_match_an_arm_of_grpo_eval_is_played_by_grpo_eval(runs: Path) -> None:
    made_by_eval(runs / "a", "rollout.max_turns=6", "eval.samples=2")
    change(runs / "a", "rollout", "max_turns", 6)
    said = refusal(runs / "a", runs / "b")
    (typed,) = re.findall(r"`(grpo eval [^`]+)`", said)
    words = shlex.split(typed)
    assert words[words.index("--adapter") + 1] == f"{runs}/b/step-002/adapter"
    assert words[words.index("--out") + 1] == f"{runs}/b-2-again"
    given = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
    assert given == ["eval.samples=2", "rollout.max_turns=6"]
    file = words[words.index("--tasks") + 1]
    assert file == read_config(runs / "a" / "run.toml").data.heldout
    assert f"then compare with {runs}/b-2-again@warm" in said
    assert "`grpo sft " in refusal(runs / "a", f"{runs}/b@base")


def test_tasks_of_the_same_ids_and_other_contents_are_other_tasks(
    runs: Path, tmp_path: Path
) -> None:
    on = [replace(t, prompt="do something else") for t in tasks(HELD_OUT)]
    changed = make_night(tmp_path / "changed", n_steps=STEPS, held_out=on).folder.path
    assert "the same 24 ids, but other contents" in refusal(runs / "a", changed)


@pytest.mark.parametrize(
    ("table", "key", "value", "says"),
    [
        ("eval", "temperature", 0.7, "eval.temperature: 0.2 in a@2, 0.7 in b@2"),
        ("rollout", "max_turns", 6, "rollout.max_turns: 12 in a@2, 6 in b@2"),
        ("rollout", "max_new_tokens", 8, "rollout.max_new_tokens: 96 in a@2, 8 in b@2"),
        ("rollout", "protocol", "literal", "rollout.protocol: 'sentinel' in a@2, 'literal' in b@2"),
        ("sandbox", "kind", "none", "sandbox.kind: 'bwrap' in a@2, 'none' in b@2"),
        ("sandbox", "command_seconds", 3.0, "sandbox.command_seconds: 10.0 in a@2, 3.0 in b@2"),
        ("engine", "dtype", "bfloat16", "engine.dtype: 'auto' in a@2, 'bfloat16' in b@2"),
    ],
)
def test_a_key_that_changes_what_is_played_is_named_with_both_values(
    runs: Path, table: str, key: str, value: object, says: str
) -> None:
    change(runs / "b", table, key, value)
    said = refusal(runs / "a", runs / "b")
    assert says in said
    assert sum(line.startswith("  ") for line in said.splitlines()) == 2, "one key and one remedy"


def test_arms_without_a_sandbox_are_compared_with_each_other_and_named(runs: Path) -> None:
    for name in ("a", "b"):
        change(runs / name, "sandbox", "kind", "none")
    said = "Played without a sandbox (--sandbox none): a@2, b@2."
    assert said in told(runs / "a", runs / "b")
    assert said in markdown(compare_arms([f"{runs}/a", f"{runs}/b"]))


def test_an_arm_is_played_again_without_a_sandbox_as_the_first_one_was(runs: Path) -> None:
    change(runs / "a", "sandbox", "kind", "none")
    edit(runs / "a", lambda manifest: manifest.__setitem__("sandbox", "none"))
    assert "--skip-preflight --sandbox none`" in refusal(runs / "a", runs / "b")
    assert "--sandbox" not in refusal(runs / "b", runs / "a")


def test_an_arm_is_played_again_on_as_many_tasks_as_the_first_run_settled_on(
    runs: Path, tmp_path: Path
) -> None:
    few = make_night(tmp_path / "few", n_steps=STEPS, held_out=tasks(14)).folder.path
    RunFolder(few).adapter(STEPS).mkdir()
    change(runs / "a", "eval", "tasks", HELD_OUT)
    (runs / "a" / "run.toml").write_text('[eval]\ntasks = "auto"\n')
    assert f"--skip-preflight --set eval.tasks={HELD_OUT}`" in refusal(runs / "a", few)
    assert "--set" not in refusal(few, runs / "a")


def test_every_arm_that_does_not_match_is_listed_with_every_key(runs: Path) -> None:
    shutil.copytree(runs / "a", runs / "c")
    change(runs / "b", "rollout", "max_turns", 6)
    change(runs / "b", "sandbox", "processes", 2)
    change(runs / "c", "eval", "temperature", 1.0)
    said = refusal(runs / "a", runs / "b", runs / "c")
    assert said.count("was not played as a@2 was") == 2
    for key in ("rollout.max_turns", "sandbox.processes", "eval.temperature"):
        assert key in said


def test_a_key_that_an_older_manifest_lacks_has_the_default(runs: Path) -> None:
    edit(runs / "b", lambda m: m["config"]["sandbox"].pop("open_files"))
    assert list(matched_arms([f"{runs}/a", f"{runs}/b"])) == ["a@2", "b@2"]


@pytest.mark.parametrize(
    ("table", "key", "value"),
    [
        ("engine", "port", 8123),
        ("engine", "lifecycle", "restart"),
        ("rollout", "temperature", 0.8),
        ("rollout", "concurrency", 4),
        ("trainer", "lr", 1.0),
        ("reward", "turn_penalty", 0.1),
    ],
)
def test_how_a_run_trains_or_how_fast_it_serves_is_no_reason_to_refuse(
    runs: Path, table: str, key: str, value: object
) -> None:
    change(runs / "b", table, key, value)
    assert list(matched_arms([f"{runs}/a", f"{runs}/b"])) == ["a@2", "b@2"]


def test_what_is_no_condition_is_named_as_run_toml_names_it() -> None:
    config = asdict(RunConfig())
    for dotted in NO_CONDITION:
        table, _, key = dotted.rpartition(".")
        assert key in (EnvSettings.__annotations__ if table == "envs.NAME" else config[table])


def test_other_sampling_seeds_are_refused(runs: Path) -> None:
    file = evaluation_of(runs / "b", NEWEST_SHA) / TRAJECTORIES
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines[:5]:
        line["seed"] += 1
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_trajectories(file)[0].seed == 1
    assert "sampling seeds: not the same on 5 of 24 tasks" in refusal(runs / "a", runs / "b")


def test_limits_that_only_the_evaluations_hash_tells_apart_are_refused(runs: Path) -> None:
    played = evaluation_of(runs / "b", NEWEST_SHA)
    found = json.loads((played / "eval.json").read_text())
    key = key_of(NEWEST_SHA, found["tasks_sha"], "0" * 64)
    (played / "eval.json").write_text(json.dumps(found | {"settings_sha": "0" * 64, "key": key}))
    played.rename(played.with_name(key))
    edit(runs / "b", lambda m: m["evaluation"].__setitem__("settings_sha", "0" * 64))
    assert "episode settings (hash)" in refusal(runs / "a", runs / "b")


def test_another_version_of_the_program_is_refused_and_the_older_arm_is_to_be_played_again(
    runs: Path,
) -> None:
    for name, version in (("a", "0.0.1"), ("b", "0.0.2")):
        edit(runs / name, lambda m, v=version: m["versions"].__setitem__("grpo-loop", v))
    said = refusal(runs / "a", runs / "b")
    assert "versions.grpo-loop: '0.0.1' in a@2, '0.0.2' in b@2" in said
    assert "a-2-again@warm" in said
    assert "b-2-again@warm" in said


def test_the_base_model_under_other_conditions_is_found_in_the_first_run(runs: Path) -> None:
    change(runs / "b", "rollout", "max_turns", 6)
    assert f"{runs}/a@base is this base model" in refusal(runs / "a", f"{runs}/b@base")


# --- what is told and not refused -----------------------------------------------------------------


def test_another_commit_is_told(runs: Path) -> None:
    for name, commit in (("a", "1111111111aa"), ("b", "2222222222bb")):
        edit(runs / name, lambda m, c=commit: m["versions"].__setitem__("commit", c))
    assert "commit: 1111111111 (a@2), 2222222222 (b@2)" in told(runs / "a", runs / "b")


def test_an_arm_that_was_taken_over_has_the_software_of_the_run_that_played_it(
    runs: Path,
) -> None:
    edit(runs / "a", lambda m: m["versions"].__setitem__("torch", "1.0"))
    key = evaluation_of(runs / "b", '"base"').name
    Journal(runs / "b" / "journal.jsonl").append("arm_taken_over", arm="base", key=key, run="a")
    said = told(runs / "a", f"{runs}/b@base", runs / "b")
    assert "torch: 1.0 (a@2, b@base), 2.13.0 (b@2)" in said
    (runs / "a").rename(runs / "gone")
    assert "b@base: taken over from a run that is gone" in told(f"{runs}/b@base", runs / "b")


def test_another_base_model_is_told_and_the_same_policy_twice_too(runs: Path) -> None:
    assert "a@2 and b@2 are the same policy." in told(runs / "a", runs / "b")
    edit(runs / "b", lambda m: m["model"]["files"].__setitem__("model.safetensors", "other"))
    said = told(runs / "a", runs / "b")
    assert "Not the same base model" in said
    assert "same policy" not in said


@pytest.mark.parametrize("final", [False, True])
def test_what_the_tasks_were_used_for_before_is_told(runs: Path, final: bool) -> None:
    if final:
        sha = json.loads((runs / "b" / "manifest.json").read_text())["evaluation"]["tasks_sha"]
        for name, earlier in (("a", []), ("b", ["run a on 2026-11-26 (step 2)"])):
            journal = Journal(runs / name / "journal.jsonl")
            journal.append("final_set_opened", tasks_sha=sha, earlier=earlier)
        says = "The final set had been opened before, by 1 run: run a on 2026-11-26 (step 2)."
    else:
        edit(runs / "a", lambda manifest: manifest["data"]["heldout"].update(path=DEVELOPMENT))
        says = "Settings are chosen on the development tasks, so these figures prove nothing."
    found = compare_arms([f"{runs}/a", f"{runs}/b"])
    assert f"- {says}" in markdown(found)
    assert any(said.startswith(says) for said in plain(found)["remarks"])


# --- the numbers ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair(one_night: Path) -> Comparison:
    return compare_arms([f"{one_night}@warm", f"{one_night}@2"])


@pytest.fixture(scope="module")
def three(one_night: Path) -> Comparison:
    return compare_arms([f"{one_night}@warm", f"{one_night}@2", f"{one_night}@base"])


def test_two_arms_have_the_exact_test_and_the_names_of_the_tasks_that_flipped(
    pair: Comparison,
) -> None:
    (found,) = pair.compared
    assert found.row.passed.test.p_value == pytest.approx(binomtest(2, 6).pvalue)
    assert found.passed_p == found.row.passed.test.p_value, "one comparison needs no adjustment"
    assert found.lost == ("t000", "t001")
    assert found.won == ("t010", "t011", "t012", "t013")
    assert found.row.turns.value == -9


def test_several_comparisons_are_adjusted_and_the_adjusted_values_are_shown(
    three: Comparison,
) -> None:
    trained, base = three.compared
    alone = [binomtest(2, 6).pvalue, binomtest(0, 10).pvalue]
    assert [base.passed_p, trained.passed_p] == pytest.approx([2 * alone[1], alone[0]])
    table = next(t for t in tables(three) if t.title == "Against night@warm")
    assert "p = 0.004" in table.rows[1][1], table.rows
    assert any("adjusted over the rows" in note for note in table.notes)


def test_a_difference_that_only_one_test_alone_would_show_is_not_claimed(tmp_path: Path) -> None:
    """6 of 6 flips: p = 0.03 alone, 0.06 beside another arm."""
    night = make_night(tmp_path, n_steps=3)
    on = tasks(HELD_OUT)
    for sha, passes in (("sha-1", 16), ("sha-2", 16)):
        write_eval(night.folder.evals, arm(sha, on, passes=passes, turns=12, stops=0), on)
    run = night.folder.path
    assert "tasks passed up" in sentences(compare_arms([f"{run}@warm", f"{run}@1"]))[0]
    both = sentences(compare_arms([f"{run}@warm", f"{run}@1", f"{run}@2"]))
    assert not any("tasks passed up" in s for s in both)


def test_what_can_be_luck_says_how_much_it_leaves_open(pair: Comparison) -> None:
    (said,) = sentences(pair)
    assert said.startswith("night@2 against night@warm: stops up, turns down; the rest can be luck")
    assert "in tasks passed it may be up to" in said


def test_two_arms_are_shown_by_persona_and_kind_and_more_are_not(
    pair: Comparison, three: Comparison
) -> None:
    titles = [t.title for t in tables(pair)]
    assert {"By persona", "By difficulty", "By template", "By assertion kind"} <= set(titles)
    assert len(tables(three)) == 3
    assert any("compare two arms" in n for t in tables(three) for n in t.notes)


def test_a_held_out_file_that_is_gone_costs_the_tables_by_tag_and_nothing_else(
    tmp_path: Path,
) -> None:
    night = make_night(tmp_path, n_steps=STEPS)
    Path(night.config.data.heldout).unlink()
    found = compare_arms([f"{night.folder.path}@warm", str(night.folder.path)])
    titles = [t.title for t in tables(found)]
    assert "By persona" not in titles
    assert "By assertion kind" in titles
    assert any("heldout.jsonl is gone or has changed" in r for r in found.remarks)


# --- the four forms -------------------------------------------------------------------------------


def test_the_terminal_shows_tables_first_and_what_can_be_said_last(pair: Comparison) -> None:
    console = Console(width=80, file=io.StringIO(), record=True)
    console.print(rich_page(pair))
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= 80
    assert text.index("Against night@warm") < text.index("night@2 against night@warm: stops up")


def test_the_markdown_opens_with_what_can_be_said(pair: Comparison) -> None:
    page = markdown(pair)
    assert page.startswith("# night@warm and night@2 on the same 24 held-out tasks\n\n- **night@2")
    assert "| night@2 | +8.3 [" in page


def test_the_json_has_every_number_and_can_be_read_again(
    pair: Comparison, three: Comparison
) -> None:
    value = json.loads(json.dumps(plain(pair), allow_nan=False))
    assert value["reference"] == "night@warm"
    assert value["arms"][1]["adapter_sha"] == NEWEST_SHA
    assert value["differences"][0]["won"] == ["t010", "t011", "t012", "t013"]
    assert value["conditions"]["rollout.max_turns"] == 12
    assert {row["value"] for row in value["by"]["difficulty"]} == {"easy", "middle", "hard"}
    assert plain(three)["by"] is None


def test_the_page_needs_nobody_and_holds_every_table(three: Comparison) -> None:
    page = Page(html(three))
    assert "script" not in page.tags
    assert [a for a in page.addresses if not a.startswith(("#", "data:"))] == []
    assert len(page.ids) == len(set(page.ids))
    for name in three.arms:
        assert f'<th scope="row">{name}</th>' in page.html
    assert "<svg" in page.html


def test_a_task_id_is_no_markup_on_the_page(pair: Comparison) -> None:
    (one,) = pair.compared
    nasty = replace(pair, compared=(replace(one, won=("<script>alert(1)</script>\u202e",)),))
    page = Page(html(nasty))
    assert "script" not in page.tags
    assert "⟨U+202E⟩" in page.text


# --- as it is typed -------------------------------------------------------------------------------


def typed(*words: str | Path) -> None:
    """`grpo compare` with these words; what a person would see as an error is raised."""
    app(["compare", *map(str, words)], standalone_mode=False)


def test_rewards_that_were_paid_differently_are_not_compared() -> None:
    """One policy with two turn penalties: a gain of 0.5 would be the payment's alone."""
    arms = [f"docs/penalty/turn_penalty-{p}-seed0@warm" for p in ("0.5", "0")]
    found = plain(compare_arms([str(ROOT / arm) for arm in arms]))
    assert any(
        r.startswith(
            "Paid differently, so that mean rewards do not compare: reward.turn_penalty: 0.5 ("
        )
        for r in found["remarks"]
    )
    assert {arm["mean_reward"] for arm in found["arms"]} == {None}
    assert [one["reward"] for one in found["differences"]] == [None]


def test_typed_json_is_json_and_nothing_else(
    runs: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    typed(f"{runs}/a@warm", runs / "a", "--json", "--html", tmp_path / "c.html")
    out = capsys.readouterr()
    assert json.loads(out.out)["n_tasks"] == HELD_OUT
    assert str(tmp_path / "c.html") in out.err


def test_typed_without_a_form_is_tables(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    typed(f"{runs}/a@warm", runs / "a")
    assert "Why attempts ended" in capsys.readouterr().out


def test_two_printed_forms_at_once_are_refused(runs: Path) -> None:
    with pytest.raises(BadInput, match="choose one"):
        typed(f"{runs}/a@warm", runs / "a", "--json", "--markdown")


def test_comparing_writes_nothing_into_a_run(runs: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in RunFolder(runs / "a").path.rglob("*")}
    compare_arms([f"{runs}/a@warm", f"{runs}/a"])
    assert {p: p.stat().st_mtime_ns for p in RunFolder(runs / "a").path.rglob("*")} == before


# --- the mean of several arms ---------------------------------------------------------------------


def test_the_mean_of_all_arms_but_the_first_is_compared_with_it_where_that_is_asked(
    runs: Path,
) -> None:
    names = [f"{runs}/a@warm", f"{runs}/a", f"{runs}/b@base"]
    assert compare_arms(names).mean is None
    found = compare_arms(names, mean=True)
    assert found.mean is not None
    # 10 of 24 pass at the start; one arm passes 12 of them and the other none.
    assert found.mean["passed"].estimate.value == pytest.approx((6 - 10) / HELD_OUT)
    said = "The mean of a@2 and b@base: passes cannot be told from those with a@warm (−16.7"
    assert sentences(found)[-1].startswith(said)
    shown = io.StringIO()
    Console(file=shown, width=200).print(rich_page(found))
    for form in (shown.getvalue(), markdown(found), html(found)):
        assert said in form
        assert "Their mean against a@warm" in form
    assert plain(found)["mean"]["passed"]["estimate"]["value"] == pytest.approx(-4 / HELD_OUT)
    assert "mean" not in plain(compare_arms(names))


def test_a_mean_of_one_arm_is_refused(runs: Path) -> None:
    with pytest.raises(BadInput, match="--mean: name at least two arms after the reference"):
        compare_arms([f"{runs}/a@warm", f"{runs}/a"], mean=True)
