"""A saboteur kills every victim in turn and at every boundary in turn."""

from __future__ import annotations

from collections.abc import Callable, Collection

from tests.chaos.night import ON_VLLM, RANDOM, Saboteur, Victim

ALWAYS = (Victim.LOOP, Victim.ALL)
BOUNDARIES = ("loop_start", "phase_start train", "phase_end train")


def strike(saboteur: Saboteur, moment: str, living: Collection[Victim]) -> Victim | None:
    victim = saboteur.victim(moment, living)
    if victim is not None:
        saboteur.killed(moment, victim)
    return victim


def looked_at(saboteur: Saboteur, living: Callable[[float], Collection[Victim]]) -> float | None:
    """When a random moment hit a victim in the first minute after a loop's start."""
    saboteur.begin()
    for hundredth in range(6000):
        seconds = hundredth / 100
        if (moment := saboteur.moment((), seconds)) and strike(saboteur, moment, living(seconds)):
            return seconds
    return None


def test_every_victim_is_hit_as_often_as_every_other() -> None:
    saboteur = Saboteur(20, seed=0, victims=ON_VLLM)
    for _ in range(20):
        strike(saboteur, RANDOM, ON_VLLM)
    assert saboteur.left == 0
    assert set(saboteur.victims.values()) == {3, 4}


def test_at_a_boundary_somebody_who_lives_is_hit() -> None:
    saboteur = Saboteur(6, seed=0, victims=ON_VLLM)
    hit = [strike(saboteur, "loop_start", ALWAYS) for _ in range(6)]
    assert sorted(map(str, hit)) == ["everything at once"] * 3 + ["loop"] * 3


def test_a_victim_that_lives_only_for_a_while_is_waited_for() -> None:
    began, ended = 20.0, 22.0  # long after the latest first look, 12 s
    hits: list[float] = []
    for seed in range(10):
        saboteur = Saboteur(1, seed, victims=[Victim.TRAINER])
        saboteur.missed = True
        when = looked_at(saboteur, lambda s: [Victim.TRAINER] if began <= s <= ended else ())
        assert when is not None
        assert began <= when <= ended
        hits.append(when)
    assert max(hits) - min(hits) > 0.5, "it is always hit as it begins"


def test_a_loop_whose_victim_never_lived_hands_its_moment_to_the_next() -> None:
    saboteur = Saboteur(1, seed=0, victims=[Victim.TRAINER])
    saboteur.missed = True
    assert looked_at(saboteur, lambda _: ()) is None
    assert looked_at(saboteur, lambda _: [Victim.TRAINER]) is not None


def test_every_kind_of_boundary_is_hit_once() -> None:
    saboteur = Saboteur(40, seed=0)
    hit: list[str] = []
    for _ in range(20):
        saboteur.begin()
        for boundary in BOUNDARIES:
            if saboteur.moment([boundary], 0.0) == boundary:
                strike(saboteur, boundary, ALWAYS)
                hit.append(boundary)
    assert sorted(hit) == sorted(BOUNDARIES)


def test_while_a_missed_victim_is_waited_for_boundaries_are_hit() -> None:
    saboteur = Saboteur(3, seed=0, victims=[Victim.TRAINER, Victim.LOOP])
    saboteur.missed = True
    assert looked_at(saboteur, lambda _: ()) is None
    assert saboteur.moment([BOUNDARIES[0]], 60.0) == BOUNDARIES[0]
    assert strike(saboteur, BOUNDARIES[0], [Victim.LOOP]) is Victim.LOOP
    assert saboteur.missed
    assert looked_at(saboteur, lambda _: [Victim.TRAINER]) is not None


def test_no_kill_comes_after_the_last() -> None:
    saboteur = Saboteur(1, seed=0)
    strike(saboteur, RANDOM, ALWAYS)
    assert looked_at(saboteur, lambda _: ALWAYS) is None
    assert saboteur.moment(BOUNDARIES, 60.0) == ""
