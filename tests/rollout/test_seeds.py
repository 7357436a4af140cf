"""Which noise a step meets, whatever happened before it."""

from rollout.seeds import EPISODE_TURN, SEED_BITS, eval_seed, training_seed


def test_every_turn_of_a_run_has_its_own_seed() -> None:
    seeds = {
        training_seed(run, step, task, k, turn)
        for run in (0, 1)
        for step in range(5)
        for task in ("a", "b")
        for k in range(4)
        for turn in range(EPISODE_TURN, 12)
    }
    assert len(seeds) == 2 * 5 * 2 * 4 * 13
    assert all(0 <= s < 2**SEED_BITS for s in seeds)


def test_seeds_stay_what_they_were() -> None:
    # A change here would make every stored partial file and every matched arm worthless.
    assert training_seed(0, 1, "a", 0, 0) == 59597468921338
    assert eval_seed("a", 0, 0) == 17751423394371


def test_an_evaluation_seed_depends_on_task_attempt_and_turn_only() -> None:
    seeds = {
        eval_seed(task, k, turn) for task in ("a", "b") for k in range(4) for turn in range(12)
    }
    assert len(seeds) == 2 * 4 * 12


def test_names_that_run_together_do_not_share_seeds() -> None:
    assert training_seed(0, 1, "a", 11, 1) != training_seed(0, 1, "a", 1, 11)
    assert training_seed(1, 11, "a", 0, 0) != training_seed(11, 1, "a", 0, 0)
