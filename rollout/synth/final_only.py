"""Operations of the final set alone: nothing was trained and no setting was chosen on them.

They have the same three difficulties and the same sandbox as the others, so they show how far
training carries over to operations that a policy has not seen.
"""

from __future__ import annotations

from rollout.synth.operation import (
    FINAL,
    Assertion,
    Draw,
    Piece,
    contains,
    csv_text,
    exactly,
    exists,
    gone,
    lacks,
    operation,
    table_rows,
    text,
    to_file,
)


def _empty(path: str) -> Assertion:
    return {"kind": "file_contents_match_regex", "path": path, "regex": r"\A\s*\Z"}


# --- easy -----------------------------------------------------------------------------------------


@operation("easy", only_in=FINAL)
def prepend(d: Draw) -> Piece:
    path, lines, line = d.file(), d.lines(2, 3), " ".join(d.words(2))
    return Piece(
        d.phrase(
            f"Add the line '{line}' at the top of {path}.",
            f"Put '{line}' before the first line of {path}.",
        ),
        {path: text(lines)},
        (f"sed -i '1i {line}' {path}",),
        (contains(path, line), exactly(path, line, *lines)),
        (f"cat {path}",),
        (f"cat {path}", f"head -n 1 {path}"),
    )


@operation("easy", only_in=FINAL)
def clear_file(d: Draw) -> Piece:
    path, lines = d.file(), d.lines(2, 4)
    return Piece(
        d.phrase(
            f"Remove everything in {path}, but keep the empty file.",
            f"Make {path} an empty file.",
        ),
        {path: text(lines)},
        (f"truncate -s 0 {path}",),
        (_empty(path),),
        (f"cat {path}",),
        (f"cat {path}", "ls"),
    )


@operation("easy", only_in=FINAL)
def move_into(d: Draw) -> Piece:
    path, folder, lines = d.file(), d.folder(), d.lines(2, 3)
    return Piece(
        d.phrase(
            f"Move {path} into a new folder {folder}.",
            f"Create the folder {folder} and move {path} there.",
        ),
        {path: text(lines)},
        (f"mkdir -p {folder}", f"mv {path} {folder}/"),
        (exactly(f"{folder}/{path}", *lines), gone(path)),
        ("ls",),
        (f"ls {folder}", "ls"),
    )


@operation("easy", only_in=FINAL)
def two_lines(d: Draw) -> Piece:
    path, first, second = d.file(), d.word(), d.word()
    return Piece(
        d.phrase(
            f"Create {path} with two lines: first '{first}', then '{second}'.",
            f"Write '{first}' and below it '{second}' to a new file {path}.",
        ),
        {},
        (f"echo '{first}' > {path}", f"echo '{second}' >> {path}"),
        (contains(path, first), exactly(path, first, second)),
        ("ls",),
        (f"cat {path}",),
    )


# --- middle ---------------------------------------------------------------------------------------


@operation("middle", only_in=FINAL)
def reverse_lines(d: Draw) -> Piece:
    path, out, lines = d.file(), d.file("txt"), d.lines()
    return to_file(
        d.phrase(
            f"Write the lines of {path} in reverse order to {out}.",
            f"Copy {path} to {out} with its last line first and its first line last.",
        ),
        {path: text(lines)},
        f"tac {path} > {out}",
        (path, out),
        *reversed(lines),
    )


@operation("middle", only_in=FINAL)
def unique_lines(d: Draw) -> Piece:
    path, out, words = d.file(), d.file("txt"), d.lines(3, 4)
    lines = words + d.rng.sample(words, 2)
    d.rng.shuffle(lines)
    return to_file(
        d.phrase(
            f"Write every different line of {path} once, in sorted order, to {out}.",
            f"Sort {path} into {out} and leave out repeated lines.",
        ),
        {path: text(lines)},
        f"sort -u {path} > {out}",
        (path, out),
        *sorted(words),
    )


@operation("middle", only_in=FINAL)
def count_matching(d: Draw) -> Piece:
    path, out, word = d.file(), d.file("txt"), d.word()
    others, hits = d.lines(4, 6), d.number(1, 3)
    lines = [f"{other} {word}" if i < hits else other for i, other in enumerate(others)]
    d.rng.shuffle(lines)
    return to_file(
        d.phrase(
            f"Write the number of lines of {path} that contain {word} to {out}.",
            f"Count the lines with the word {word} in {path} and put just the number in {out}.",
        ),
        {path: text(lines)},
        f"grep -c {word} {path} > {out}",
        (path, out),
        str(hits),
    )


@operation("middle", only_in=FINAL)
def lines_without(d: Draw) -> Piece:
    path, out, word = d.file(), d.file("txt"), d.word()
    lines = [f"{other} {word}" if i % 2 else other for i, other in enumerate(d.words(5))]
    return to_file(
        d.phrase(
            f"Write the lines of {path} that do not contain {word} to {out}.",
            f"Copy {path} to {out} without the lines that have the word {word}.",
        ),
        {path: text(lines)},
        f"grep -v {word} {path} > {out}",
        (path, out),
        *(line for line in lines if word not in line),
    )


@operation("middle", only_in=FINAL)
def nth_line(d: Draw) -> Piece:
    path, out, lines = d.file(), d.file("txt"), d.lines(4, 6)
    n = d.number(2, 3)
    return to_file(
        d.phrase(f"Write line {n} of {path} to {out}.", f"Put only line {n} of {path} in {out}."),
        {path: text(lines)},
        f"sed -n {n}p {path} > {out}",
        (path, out),
        lines[n - 1],
    )


@operation("middle", only_in=FINAL)
def remove_key(d: Draw) -> Piece:
    path, settings = d.file("cfg"), {d.key(): d.number() for _ in range(4)}
    key = d.rng.choice(list(settings))
    rest = [f"{k}={v}" for k, v in settings.items() if k != key]
    return Piece(
        d.phrase(f"Remove the setting {key} from {path}.", f"Delete the line of {key} in {path}."),
        {path: text([f"{k}={v}" for k, v in settings.items()])},
        (f"sed -i '/^{key}=/d' {path}",),
        (lacks(path, f"{key}="), exactly(path, *rest)),
        (f"cat {path}",),
        (f"cat {path}",),
    )


# --- hard -----------------------------------------------------------------------------------------


@operation("hard", only_in=FINAL)
def mean_column(d: Draw) -> Piece:
    path, out, rows = d.file("csv"), d.file("txt"), table_rows(d, 4, 4)
    name, value = rows[-1]
    rows[-1] = (name, value + -sum(v for _, v in rows) % len(rows))  # so that the mean is whole
    return to_file(
        d.phrase(
            f"Write the mean of the numbers in column 2 of {path} to {out}.",
            f"Work out the average of the second column of {path} and write it to {out}.",
        ),
        {path: csv_text(rows)},
        f"awk -F, '{{s+=$2}} END {{print s/NR}}' {path} > {out}",
        (path, out),
        str(sum(v for _, v in rows) // len(rows)),
    )


@operation("hard", only_in=FINAL)
def sort_rows(d: Draw) -> Piece:
    path, out, rows = d.file("csv"), d.file("txt"), table_rows(d)
    return to_file(
        d.phrase(
            f"Write the rows of {path} to {out}, ordered by their number, smallest first.",
            f"Sort {path} by column 2, lowest number first, into {out}.",
        ),
        {path: csv_text(rows)},
        f"sort -t, -k2 -n {path} > {out}",
        (path, out),
        *(f"{name},{value}" for name, value in sorted(rows, key=lambda row: row[1])),
    )


@operation("hard", only_in=FINAL)
def most_lines(d: Draw) -> Piece:
    ext, out = d.rng.choice(("md", "log", "dat")), d.file("txt")
    names = [d.file(ext) for _ in range(3)]
    sizes = d.rng.sample(range(1, 5), len(names))
    files = {name: text(d.words(size)) for name, size in zip(names, sizes, strict=True)}
    return Piece(
        d.phrase(
            f"Write the name of the .{ext} file with the most lines to {out}.",
            f"Find out which .{ext} file has the most lines and write its name to {out}.",
        ),
        files,
        (f"wc -l *.{ext} | sort -n | tail -n 2 | head -n 1 | awk '{{print $2}}' > {out}",),
        (exists(out), exactly(out, names[sizes.index(max(sizes))])),
        (f"wc -l *.{ext}",),
        (f"cat {out}",),
    )


@operation("hard", only_in=FINAL)
def swap_files(d: Draw) -> Piece:
    first, second, spare = d.file("txt"), d.file("md"), d.file("tmp")
    a, b = d.lines(2, 3), d.lines(2, 3)
    return Piece(
        d.phrase(
            f"Swap the contents of {first} and {second}.",
            f"Put what is in {first} into {second}, and what was in {second} into {first}.",
        ),
        {first: text(a), second: text(b)},
        (f"mv {first} {spare}", f"mv {second} {first}", f"mv {spare} {second}"),
        (exactly(first, *b), exactly(second, *a)),
        (f"cat {first} {second}",),
        (f"cat {first}", f"cat {second}"),
    )


@operation("hard", only_in=FINAL)
def common_lines(d: Draw) -> Piece:
    first, second, out = d.file("txt"), d.file("md"), d.file("txt")
    shared, a, b = d.lines(2, 2), d.lines(2, 2), d.lines(1, 2)
    lines, others = shared + a, shared + b
    d.rng.shuffle(lines)
    d.rng.shuffle(others)
    return Piece(
        d.phrase(
            f"Write the lines of {first} that are in {second} too to {out}.",
            f"Write the lines that {first} and {second} share to {out}, in the order of {first}.",
        ),
        {first: text(lines), second: text(others)},
        (f"grep -Fxf {second} {first} > {out}",),
        (exists(out), exactly(out, *(line for line in lines if line in shared))),
        (f"cat {first} {second}",),
        (f"cat {out}",),
    )


@operation("hard", only_in=FINAL)
def rename_by_content(d: Draw) -> Piece:
    old, new, lines = d.file("txt"), d.file("md"), d.lines(2, 3)
    return Piece(
        d.phrase(
            f"The first line of {old} is a file name. Rename {old} to it.",
            f"Rename {old} to the name that its first line holds.",
        ),
        {old: text([new, *lines])},
        (f"mv {old} $(head -n 1 {old})",),
        (exactly(new, new, *lines), gone(old)),
        (f"head -n 1 {old}",),
        ("ls", f"cat {new}"),
    )
