import threading
import weakref
from collections.abc import Iterator

import pytest
import torch

from trainer.scoring.parallel import at_once, in_order


def test_results_come_in_the_order_of_the_items_whichever_is_ready_first() -> None:
    second_is_done = threading.Event()

    def work(item: int) -> int:
        if item == 0:
            assert second_is_done.wait(30)
        if item == 1:
            second_is_done.set()
        return item * 10

    assert list(in_order(work, range(7), 2)) == [0, 10, 20, 30, 40, 50, 60]


@pytest.mark.parametrize("several", [2, 3])
def test_so_many_are_computed_at_a_time_and_no_more(several: int) -> None:
    all_are_here = threading.Barrier(several, timeout=30)
    lock, now, most = threading.Lock(), 0, 0

    def work(_: int) -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        all_are_here.wait()
        with lock:
            now -= 1

    list(in_order(work, range(4 * several), several))
    assert most == several


def test_an_item_that_has_to_be_alone_waits_for_the_others_and_has_all_threads() -> None:
    lock, running = threading.Lock(), 0

    def work(item: int) -> tuple[int, int, bool]:
        nonlocal running
        with lock:
            running += 1
            others = running - 1
        threads = torch.get_num_threads()
        with lock:
            running -= 1
        return item, threads, item == 3 and others > 0

    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        found = list(in_order(work, range(6), 2, lambda item: item == 3))
    finally:
        torch.set_num_threads(before)
    assert found == [(i, 4 if i == 3 else 2, False) for i in range(6)]


def test_threads_are_shared_out_and_given_back() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(5)
    try:
        assert set(in_order(lambda _: torch.get_num_threads(), range(6), 2)) == {2}
        assert torch.get_num_threads() == 5
        assert set(in_order(lambda _: torch.get_num_threads(), range(6), 1)) == {5}
        assert set(in_order(lambda _: torch.get_num_threads(), range(9), 8)) == {1}
        assert set(in_order(lambda _: torch.get_num_threads(), range(1), 2)) == {5}
        seen: list[int] = []
        other = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
        other.start()
        other.join()
        assert seen == [5]  # threads to come are not left with fewer
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("several", [1, 2])
def test_an_error_is_raised_in_its_item_s_place_and_the_rest_is_not_begun(several: int) -> None:
    begun: list[int] = []

    def work(item: int) -> int:
        begun.append(item)
        if item == 3:
            raise ValueError("item 3")
        return item

    results: Iterator[int] = in_order(work, range(100), several)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="item 3"):
        next(results)
    assert max(begun) < 10


@pytest.mark.parametrize("several", [2, 4])
def test_few_results_are_held_also_where_the_first_is_the_last_to_be_ready(several: int) -> None:
    """As many as `trainer.footprint` counts: those computed, one that waits, one in use."""

    class Result:
        pass

    others_are_done, done = threading.Event(), 0
    lock, held = threading.Lock(), weakref.WeakSet[Result]()

    def work(item: int) -> Result:
        nonlocal done
        if item == 0:
            assert others_are_done.wait(30)
        with lock:
            held.add(result := Result())
            done += item > 0
            if done == several:
                others_are_done.set()
        return result

    most = 0
    for result in in_order(work, range(40), several):
        most = max(most, len(held))
        del result
    assert most <= several + 2


@pytest.mark.parametrize(
    ("threads", "cores", "processes", "expected"),
    [
        (None, 2, 1, 2),
        (None, 1, 1, 1),
        (None, 64, 1, 4),
        (None, 4, 2, 2),
        (None, 2, 3, 1),
        ("1", 8, 1, 1),
        ("3", 8, 2, 3),  # of this process, as torchrun says it
        ("3,2", 2, 1, 2),  # a list is OpenMP's for nested regions
    ],
)
def test_a_core_has_a_micro_batch_of_its_own(
    threads: str | None,
    cores: int,
    processes: int,
    expected: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if threads is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)))
    assert at_once(processes, on_gpu=False) == expected
    assert at_once(processes, on_gpu=True) == 1
