"""Arms of several nights: their own gain, what separates them, and the forms that show it."""

from __future__ import annotations

import io
import json
import re
import shutil
from itertools import product
from pathlib import Path
from statistics import fmean

import pytest
from rich.console import Console
from typer.testing import CliRunner

from fieldkit.errors import BadInput
from fieldkit.eval.resampling import sign_flips
from fieldkit.eval.stats import holm, mcnemar
from rollout.arm import TRAJECTORIES
from scripts.base.checkout import ROOT
from scripts.cli.app import app
from scripts.compare.over_seeds import SeedsComparison, compare_nights, compare_over_seeds
from scripts.compare.seed_forms import html, markdown, rich_page, sentences, tables
from scripts.run.assignments import assigned, parse
from scripts.run.config import DEVELOPMENT
from scripts.run.folder import SWEEP_FILE
from tests.scripts.made_night import HELD_OUT, make_night
from tests.scripts.report.test_page import Page

STEPS = 2


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two arms, two nights each. Of 24 tasks 10 passed at the start; the nights of `kind` lost 0
    and 1 of them, those of `hard` 5 and 9, and each won four others."""
    root = tmp_path_factory.mktemp("sweep")
    lost = {("kind", 0): 0, ("kind", 1): 1, ("hard", 0): 5, ("hard", 1): 9}
    for (arm, seed), n in lost.items():
        made = make_night(root / f"made-{arm}-{seed}", n_steps=STEPS, lost=n)
        shutil.move(made.folder.path, root / f"{arm}-seed{seed}")
    return root


def folders(nights: Path) -> dict[str, list[Path]]:
    return {arm: [nights / f"{arm}-seed{n}" for n in range(2)] for arm in ("kind", "hard")}


@pytest.fixture(scope="module")
def found(nights: Path) -> SeedsComparison:
    return compare_over_seeds(folders(nights))


def test_an_arms_gain_is_the_mean_of_its_nights_by_task(found: SeedsComparison) -> None:
    kind, hard = found.arms
    assert found.n_tasks == HELD_OUT
    assert [n.total(n.end, "passed") for n in kind.nights] == [14, 13]
    assert [n.total(n.end, "passed") for n in hard.nights] == [9, 5]
    assert kind.means("passed") == pytest.approx((10 / HELD_OUT, 13.5 / HELD_OUT))
    assert kind.gain["passed"].estimate.value == pytest.approx(3.5 / HELD_OUT)
    assert hard.gain["passed"].estimate.value == pytest.approx(-3 / HELD_OUT)
    assert kind.gain["turns"].estimate.value == pytest.approx(-9)
    # Four tasks won in both nights, one lost in one of two.
    by_task = [1.0] * 4 + [-0.5] + [0.0] * 19
    others = [1.0] * 4 + [-1.0] * 5 + [-0.5] * 4 + [0.0] * 11
    expected = holm([sign_flips(by_task), sign_flips(others)])
    assert [arm.gain["passed"].p for arm in found.arms] == pytest.approx(expected)


def test_arms_are_held_against_the_first(found: SeedsComparison) -> None:
    kind, hard = found.arms
    assert kind.against is None
    assert hard.against is not None
    change = hard.against["passed"]
    assert change.estimate.value == pytest.approx((7 - 13.5) / HELD_OUT)
    assert change.sign == -1
    assert change.p == pytest.approx(sign_flips([-0.5] + [-1.0] * 4 + [-0.5] * 4 + [0.0] * 15))


def test_one_night_an_arm_is_mcnemars_test(nights: Path) -> None:
    found = compare_over_seeds({"kind": [nights / "kind-seed1"]})
    before = [i < 10 for i in range(HELD_OUT)]
    after = [1 <= i < 14 for i in range(HELD_OUT)]
    (arm,) = found.arms
    assert arm.gain["passed"].p == pytest.approx(mcnemar(before, after).p_value)


def test_a_night_that_is_not_evaluated_yet_is_left_out_and_named(
    nights: Path, tmp_path: Path
) -> None:
    shutil.copytree(nights / "kind-seed0", tmp_path / "kind-seed0")
    begun = make_night(tmp_path / "made", n_steps=STEPS, evaluated=False).folder.path
    shutil.move(begun, tmp_path / "kind-seed1")
    arms = {"kind": [tmp_path / f"kind-seed{n}" for n in range(3)]}
    found = compare_over_seeds(arms)
    assert found.unplayed == ("kind-seed1", "kind-seed2")
    assert len(found.arms[0].nights) == 1
    assert "left out: kind-seed1, kind-seed2" in markdown(found)
    hard = {"hard": [tmp_path / "hard-seed0"]}
    found = compare_over_seeds(arms | hard)
    assert [arm.name for arm in found.arms] == ["kind"]
    assert re.fullmatch(
        r"Left out: no night of hard is .*yet; `grpo sweep run \S+` plays them\.", found.remarks[-1]
    )
    with pytest.raises(BadInput, match=r"no night is .*yet; `grpo sweep run \S+` plays"):
        compare_over_seeds(hard)


def test_a_night_that_ended_before_its_end_is_left_out_and_named(
    nights: Path, tmp_path: Path
) -> None:
    """One that failed after a step that was evaluated has an evaluated newest adapter too."""
    for seed, steps in ((0, STEPS), (1, STEPS + 1)):
        night = shutil.copytree(nights / f"kind-seed{seed}", tmp_path / f"kind-seed{seed}")
        data = json.loads((night / "manifest.json").read_text())["config"]["data"]
        own = [f"data.{key}={data[key]}" for key in ("pool", "heldout", "final")]
        own += [f"run.steps={steps}", "run.eval_every=0", "eval.base=never"]
        (night / "run.toml").write_text(assigned("", parse(own), "run.toml"))
    (tmp_path / SWEEP_FILE).write_text("seeds = [0, 1]\n[arms.kind]\n")
    said = json.loads(CliRunner().invoke(app, ["sweep", "show", str(tmp_path), "--json"]).stdout)
    assert said["unplayed"] == ["kind-seed1"]
    (arm,) = said["arms"]
    assert [night["run"] for night in arm["nights"]] == ["kind-seed0"]


def test_a_night_whose_steps_cannot_be_read_is_left_out_as_one_that_failed(
    nights: Path, tmp_path: Path
) -> None:
    for seed in range(2):
        shutil.copytree(nights / f"kind-seed{seed}", tmp_path / f"kind-seed{seed}")
    (tmp_path / "kind-seed1" / "step-002" / "step.json").write_text("{", encoding="utf-8")
    found = compare_over_seeds({"kind": [tmp_path / f"kind-seed{n}" for n in range(2)]})
    assert found.unplayed == ("kind-seed1",)


def test_nights_that_were_not_evaluated_alike_are_refused(nights: Path, tmp_path: Path) -> None:
    for seed in range(2):
        shutil.copytree(nights / f"kind-seed{seed}", tmp_path / f"kind-seed{seed}")
    file = tmp_path / "kind-seed1" / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest["config"]["rollout"]["max_turns"] = 6
    file.write_text(json.dumps(manifest))
    with pytest.raises(BadInput, match=r"rollout.max_turns: 12 in .*, 6 in kind-seed1"):
        compare_over_seeds({"kind": [tmp_path / f"kind-seed{n}" for n in range(2)]})


def test_an_evaluation_that_lost_its_episodes_is_an_error_and_not_an_unplayed_night(
    nights: Path, tmp_path: Path
) -> None:
    shutil.copytree(nights / "kind-seed0", tmp_path / "kind-seed0")
    for file in tmp_path.glob(f"*/evals/*/{TRAJECTORIES}"):
        lines = file.read_text().splitlines(keepends=True)
        file.write_text("".join(lines[:-1]))
    with pytest.raises(BadInput, match=r"23 trajectories, but eval.json speaks of 24"):
        compare_over_seeds({"kind": [tmp_path / "kind-seed0"]})


def test_nights_that_were_played_without_a_sandbox_are_named(nights: Path, tmp_path: Path) -> None:
    for seed in range(2):
        night = shutil.copytree(nights / f"kind-seed{seed}", tmp_path / f"kind-seed{seed}")
        manifest = json.loads((night / "manifest.json").read_text())
        manifest["config"].setdefault("sandbox", {})["kind"] = "none"
        (night / "manifest.json").write_text(json.dumps(manifest))
    found = compare_over_seeds({"kind": [tmp_path / f"kind-seed{n}" for n in range(2)]})
    told = "Played without a sandbox (--sandbox none): kind-seed0, kind-seed1."
    assert told in found.remarks
    assert told in markdown(found)


def test_a_pool_that_changed_between_the_nights_of_a_sweep_is_named(
    nights: Path, tmp_path: Path
) -> None:
    for seed in range(2):
        night = shutil.copytree(nights / f"kind-seed{seed}", tmp_path / f"kind-seed{seed}")
        manifest = json.loads((night / "manifest.json").read_text())
        manifest["config"]["data"]["pool"] = "data/pool.jsonl"
        manifest["data"]["pool"]["sha256"] = "0" * 64
        (night / "manifest.json").write_text(json.dumps(manifest))
    both = {"kind": [tmp_path / f"kind-seed{n}" for n in range(2)]}
    assert not [r for r in compare_over_seeds(both).remarks if "begin alike" in r]
    manifest["data"]["pool"]["sha256"] = "1" * 64
    (night / "manifest.json").write_text(json.dumps(manifest))
    told = "The nights did not begin alike: data.pool, data/pool.jsonl, held other tasks in some."
    assert told in compare_over_seeds(both).remarks


def test_nights_on_the_development_set_say_that_they_prove_nothing(
    nights: Path, tmp_path: Path
) -> None:
    shutil.copytree(nights / "kind-seed0", tmp_path / "kind-seed0")
    file = tmp_path / "kind-seed0" / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest["data"]["heldout"]["path"] = DEVELOPMENT
    file.write_text(json.dumps(manifest))
    found = markdown(compare_over_seeds({"kind": [tmp_path / "kind-seed0"]}))
    assert "1 arm, 1 night, 24 development tasks" in found
    assert "so these figures prove nothing" in found


# --- nights that were no sweep --------------------------------------------------------------------


def test_nights_that_a_person_names_are_one_arm_each_with_its_own_start(nights: Path) -> None:
    words = [str(nights / "hard-seed0"), f"{nights / 'hard-seed1'}@{STEPS}"]
    found = compare_nights(words)
    (arm,) = found.arms
    assert arm.name == f"{words[0]} and {words[1]}"
    assert [n.name for n in arm.nights] == ["hard-seed0", "hard-seed1"]
    assert [n.total(n.end, "passed") for n in arm.nights] == [9, 5]
    of_sweep = compare_over_seeds({"hard": folders(nights)["hard"]}).arms[0]
    assert arm.gain == of_sweep.gain
    assert not [r for r in found.remarks if "more than their seed" in r]


def test_a_setting_in_which_nights_differ_is_named_and_a_free_one_is_not(
    nights: Path, tmp_path: Path
) -> None:
    for seed in range(2):
        shutil.copytree(nights / f"kind-seed{seed}", tmp_path / f"kind-seed{seed}")
    file = tmp_path / "kind-seed1" / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest["config"]["trainer"]["kl_coef"] = 0.5
    manifest["config"]["run"]["minutes"] = 3
    manifest["config"]["run"]["seed"] = 7
    file.write_text(json.dumps(manifest))
    found = compare_nights([str(tmp_path / f"kind-seed{n}") for n in range(2)])
    told = "The nights differ in more than their seed: trainer.kl_coef."
    assert told in found.remarks
    assert told in markdown(found)


def test_the_start_of_a_night_is_no_night(nights: Path) -> None:
    with pytest.raises(BadInput, match="compares what a night came to with its own start; name"):
        compare_nights([str(nights / "kind-seed0"), f"{nights / 'kind-seed1'}@warm"])


def test_a_night_of_which_only_the_start_is_evaluated_is_none_that_gained_nothing() -> None:
    whole, stopped = (str(ROOT / "docs" / "resample" / f"seed-{n}") for n in (0, 2))
    with pytest.raises(BadInput, match=r"seed-2: only what the night began with is .*leave"):
        compare_nights([whole, stopped])
    judged = str(ROOT / "docs" / "default-night" / "development-0")
    with pytest.raises(BadInput, match=r"development-0: an evaluation of one adapter and no night"):
        compare_nights([whole, judged])


def test_two_steps_of_one_night_are_not_two_nights() -> None:
    night = str(ROOT / "runs" / "sql-0")
    with pytest.raises(BadInput, match="two of these are steps of one night"):
        compare_nights([night, f"{night}@6"])


# --- how it is shown ------------------------------------------------------------------------------


def test_every_form_says_the_same(found: SeedsComparison) -> None:
    shown = io.StringIO()
    Console(file=shown, width=200).print(rich_page(found))
    plain = found.plain()
    assert [arm["arm"] for arm in plain["arms"]] == ["kind", "hard"]
    assert json.loads(json.dumps(plain)) == plain
    page = html(found, "penalty")
    for sentence in sentences(found):
        assert sentence in markdown(found)
        assert sentence in shown.getvalue()
        assert sentence.replace("'", "&#39;") in page
    said = sentences(found)[-1]
    assert said.startswith("hard against kind: fewer tasks pass than with kind")
    # 14 and 13 of 24 against 9 and 5: t = 6.5 / √(0.25 + 4)
    assert said.endswith("turn it round: within an arm they differ too (Welch's p = 0.17).")
    for name, table in product(
        ("10 → 14, 10 → 13", "10 → 9, 10 → 5"), (markdown(found), shown.getvalue(), page)
    ):
        assert name in table


def test_the_page_has_a_curve_for_each_figure_and_needs_no_network(found: SeedsComparison) -> None:
    page = html(found, "penalty")
    assert page.count("<svg") == 5
    parsed = Page(page)
    assert all(address.startswith(("#", "data:")) for address in parsed.addresses)
    assert not parsed.handlers
    assert "script" not in parsed.tags


def test_the_table_of_one_arm_has_nothing_to_be_held_against(nights: Path) -> None:
    (table,) = tables(compare_over_seeds({"kind": folders(nights)["kind"]}))
    (row,) = table.rows
    assert row[:5] == (
        "kind",
        "2",
        "41.7 %",
        f"{100 * fmean((14, 13)) / HELD_OUT:.1f} %",
        "10 → 14, 10 → 13",
    )


def test_grpo_sweep_show_prints_it_and_writes_the_page(nights: Path) -> None:
    (nights / SWEEP_FILE).write_text("seeds = [0, 1]\n[arms.kind]\n[arms.hard]\n")
    outcome = CliRunner().invoke(app, ["sweep", "show", str(nights), "--markdown"])
    assert outcome.exit_code == 0, outcome.output
    assert "hard against kind: fewer tasks pass" in outcome.stdout
    assert (nights / "sweep.html").is_file()


def test_a_gain_over_the_tasks_says_what_nights_with_other_seeds_may_turn_round() -> None:
    """Three committed nights of the SQL agent: two learned, one did not."""
    found = compare_nights([str(ROOT / "runs" / f"sql-{seed}") for seed in range(3)])
    (said,) = sentences(found)
    assert "more tasks pass than at the start, by +5.8" in said
    assert said.endswith("between −10.3 and +22.0: other seeds may turn it round.")
