"""How to win each game of docs/openenv, from what the game shows: oracles for the tests."""

from __future__ import annotations

import itertools
import re
from collections import Counter, deque
from collections.abc import Generator, Iterator

from scripts.base.checkout import ROOT

Moves = Generator[str, str, None]
"""Yields a move; is sent what the game showed."""


def echo(seen: str) -> Moves:
    yield seen.removeprefix("Say ").removesuffix(".")


def catch(seen: str) -> Moves:
    """Go to where the ball falls."""
    while True:
        rows = seen.strip().splitlines()
        ball = next((row.index("o") for row in rows if "o" in row), None)
        paddle = rows[-1].index("x")
        step = 0 if ball is None else (ball > paddle) - (ball < paddle)
        seen = yield ("stay", "right", "left")[step]


def guess_the_number(seen: str) -> Moves:
    low, high = map(int, re.findall(r"between (\d+) and (\d+)", seen)[0])
    while True:
        middle = (low + high) // 2
        seen = yield f"[{middle}]"
        low, high = (middle + 1, high) if "higher" in seen else (low, middle - 1)


def tower_of_hanoi(seen: str) -> Moves:
    def moved(n: int, source: str, over: str, target: str) -> Iterator[str]:
        if n:
            yield from moved(n - 1, source, target, over)
            yield f"[{source} {target}]"
            yield from moved(n - 1, over, source, target)

    yield from moved(3, "A", "B", "C")


def mastermind(seen: str) -> Moves:
    """The first code that agrees with every answer so far."""

    def pegs(code: tuple[int, ...], guess: tuple[int, ...]) -> tuple[int, int]:
        black = sum(a == b for a, b in zip(code, guess, strict=True))
        return black, len(set(code) & set(guess)) - black

    left = list(itertools.permutations(range(1, 7), 4))
    while True:
        guess = left[0]
        seen = yield f"[{' '.join(map(str, guess))}]"
        black, white = map(int, re.findall(r"(\d+) black peg\(s\), (\d+) white", seen)[0])
        left = [code for code in left if pegs(code, guess) == (black, white)]


def frozen_lake(seen: str) -> Moves:
    """The shortest way around the holes."""
    rows = [line.split("|")[1:-1] for line in seen.splitlines() if line.startswith("|")]
    cells = {(r, c): cell.strip() for r, row in enumerate(rows) for c, cell in enumerate(row)}
    start = next(at for at, cell in cells.items() if cell == "P")
    ways: deque[tuple[tuple[int, int], tuple[str, ...]]] = deque([(start, ())])
    known = {start}
    while ways:
        (r, c), way = ways.popleft()
        if cells[r, c] == "G":
            yield from (f"[{move}]" for move in way)
            return
        steps = {"up": (r - 1, c), "down": (r + 1, c), "left": (r, c - 1), "right": (r, c + 1)}
        for move, at in steps.items():
            if at in cells and cells[at] != "H" and at not in known:
                known.add(at)
                ways.append((at, (*way, move)))


def sudoku(seen: str) -> Moves:
    """Every empty cell, from the one solution."""
    rows = [
        re.findall(r"[1-9.]", line[2:]) for line in seen.splitlines() if re.match(r"R\d ", line)
    ]
    grid = {(r, c): row[c] for r, row in enumerate(rows) for c in range(9)}
    solved = _solved(grid)
    for (r, c), digit in grid.items():
        if digit == ".":
            yield f"[{r + 1} {c + 1} {solved[r, c]}]"


def _solved(grid: dict[tuple[int, int], str]) -> dict[tuple[int, int], str]:
    """The grid filled in; empty where that is impossible."""

    def free(r: int, c: int) -> set[str]:
        box = (r // 3, c // 3)
        near = {d for (i, j), d in grid.items() if i == r or j == c or (i // 3, j // 3) == box}
        return set("123456789") - near

    choices = {at: free(*at) for at, digit in grid.items() if digit == "."}
    if not choices:
        return grid
    at = min(choices, key=lambda cell: len(choices[cell]))
    ways = (_solved({**grid, at: digit}) for digit in sorted(choices[at]))
    return next((way for way in ways if way), {})


def wordle(seen: str) -> Moves:
    """The word with the commonest letters that agrees with every answer so far."""

    def marks(secret: str, guess: str) -> str:
        """G in its place, Y elsewhere, as often as the secret has the letter."""
        rest = [s for s, g in zip(secret, guess, strict=True) if s != g]
        found = []
        for s, g in zip(secret, guess, strict=True):
            found.append("G" if s == g else "Y" if g in rest else "X")
            if found[-1] == "Y":
                rest.remove(g)
        return " ".join(found)

    length = int(re.findall(r"secret (\d+)-letter word", seen)[0])
    left = sorted(word for word in _words() if len(word) == length)
    often = Counter("".join(left))
    left.sort(key=lambda word: -sum(often[letter] for letter in set(word)))
    while True:
        guess = left[0]
        seen = yield f"[{guess}]"
        answer = re.findall(r"^[GYX](?: [GYX])+$", seen, re.MULTILINE)
        left = [word for word in left[1:] if not answer or marks(word, guess) == answer[0]]


def _words() -> set[str]:
    """The words that docs/openenv/wordle_server.py draws its secrets from."""
    (static,) = (ROOT / ".venv-openenv").glob("lib/*/site-packages/xkcdpass/static")
    return {w for name in ("eff-long", "eff-short") for w in (static / name).read_text().split()}


GAMES = {
    "GuessTheNumber-v0": guess_the_number,
    "TowerOfHanoi-v0": tower_of_hanoi,
    "Mastermind-v0": mastermind,
    "FrozenLake-v0": frozen_lake,
    "Sudoku-v0": sudoku,
}
"""Of textarena, those that run offline."""
