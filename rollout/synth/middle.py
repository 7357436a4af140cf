"""Middle operations: a tool beyond cp and mv, a nested path, or several files."""

from __future__ import annotations

from rollout.synth.operation import (
    HELDOUT,
    Draw,
    Piece,
    contains,
    exactly,
    exists,
    gone,
    lacks,
    operation,
    text,
    to_file,
)


@operation("middle")
def matching_lines(d: Draw) -> Piece:
    path, out, word = d.file(), d.file("txt"), d.word()
    lines = [f"{a} {word}" if i % 2 == 0 else a for i, a in enumerate(d.words(5))]
    hits = [line for line in lines if word in line]
    return to_file(
        d.phrase(
            f"Write the lines of {path} that contain {word} to {out}.",
            f"Put every line of {path} with the word {word} in {out}.",
        ),
        {path: text(lines)},
        f"grep {word} {path} > {out}",
        (path, out),
        *hits,
    )


@operation("middle")
def sort_lines(d: Draw) -> Piece:
    path, out, lines = d.file(), d.file("txt"), d.lines(4, 5)
    return to_file(
        d.phrase(
            f"Sort the lines of {path} into {out}.",
            f"Write the lines of {path} in sorted order to {out}.",
        ),
        {path: text(lines)},
        f"sort {path} > {out}",
        (path, out),
        *sorted(lines),
    )


@operation("middle")
def first_line(d: Draw) -> Piece:
    path, out, lines = d.file(), d.file("txt"), d.lines()
    return to_file(
        d.phrase(
            f"Write the first line of {path} to {out}.",
            f"Put only the first line of {path} in {out}.",
        ),
        {path: text(lines)},
        f"head -n 1 {path} > {out}",
        (path, out),
        lines[0],
    )


@operation("middle", only_in=HELDOUT)
def last_line(d: Draw) -> Piece:
    path, out, lines = d.file(), d.file("txt"), d.lines()
    return to_file(
        f"Write the last line of {path} to {out}.",
        {path: text(lines)},
        f"tail -n 1 {path} > {out}",
        (path, out),
        lines[-1],
    )


@operation("middle")
def upper_case(d: Draw) -> Piece:
    path, out, lines = d.file(), d.file("txt"), d.lines(2, 3)
    return to_file(
        d.phrase(
            f"Write {path} in upper case to {out}.",
            f"Convert {path} to capital letters and save it as {out}.",
        ),
        {path: text(lines)},
        f"tr a-z A-Z < {path} > {out}",
        (path, out),
        *(line.upper() for line in lines),
    )


@operation("middle")
def nested_file(d: Draw) -> Piece:
    outer, inner, name, line = d.folder(), d.folder(), d.file("txt"), " ".join(d.words(2))
    path = f"{outer}/{inner}/{name}"
    return Piece(
        d.phrase(f"Write '{line}' to {path}.", f"Create {path} with the text '{line}'."),
        {},
        (f"mkdir -p {outer}/{inner}", f"echo '{line}' > {path}"),
        (exists(path), exactly(path, line)),
        ("ls",),
        (f"cat {path}", f"ls {outer}/{inner}"),
    )


@operation("middle")
def move_kind(d: Draw) -> Piece:
    folder, ext = d.folder(), d.rng.choice(("csv", "log", "cfg"))
    names = [d.file(ext) for _ in range(2)]
    word = d.word()
    return Piece(
        d.phrase(
            f"Move all .{ext} files into the folder {folder}.",
            f"Make a folder {folder} and move every .{ext} file into it.",
        ),
        {name: f"{word} {i}\n" for i, name in enumerate(names)},
        (f"mkdir -p {folder}", f"mv *.{ext} {folder}/"),
        tuple(a for n in names for a in (exists(f"{folder}/{n}"), gone(n))),
        ("ls",),
        (f"ls {folder}", "ls"),
    )


@operation("middle")
def join_files(d: Draw) -> Piece:
    first, second, out = d.file(), d.file(), d.file("txt")
    a, b = d.lines(2, 2), d.lines(2, 2)
    return Piece(
        d.phrase(
            f"Join {first} and {second} into {out}, in this order.",
            f"Write {first} followed by {second} to {out}.",
        ),
        {first: text(a), second: text(b)},
        (f"cat {first} {second} > {out}",),
        (exists(out), exactly(out, *a, *b)),
        ("ls",),
        (f"cat {out}",),
    )


@operation("middle")
def drop_lines(d: Draw) -> Piece:
    path, lines = d.file(), d.lines(4, 5)
    word = d.rng.choice(lines)
    return Piece(
        d.phrase(
            f"Delete the line with {word} from {path}.",
            f"Remove every line that contains {word} from {path}.",
        ),
        {path: text(lines)},
        (f"sed -i '/{word}/d' {path}",),
        (lacks(path, word), exactly(path, *(line for line in lines if line != word))),
        (f"cat {path}",),
        (f"cat {path}",),
    )


@operation("middle")
def set_key(d: Draw) -> Piece:
    path, keys, value = d.file("cfg"), [d.key() for _ in range(3)], d.number(100, 999)
    settings = {key: d.number() for key in keys}
    key = d.rng.choice(keys)
    after = {**settings, key: value}
    return Piece(
        d.phrase(
            f"Set {key} to {value} in {path}.",
            f"In {path}, change the value of {key} to {value}.",
        ),
        {path: text([f"{k}={v}" for k, v in settings.items()])},
        (f"sed -i 's/^{key}=.*/{key}={value}/' {path}",),
        (contains(path, f"{key}={value}"), exactly(path, *(f"{k}={v}" for k, v in after.items()))),
        (f"cat {path}",),
        (f"cat {path}", f"grep {key} {path}"),
    )


@operation("middle", only_in=HELDOUT)
def lower_case(d: Draw) -> Piece:
    path, out, lines = d.file(), d.file("txt"), [w.upper() for w in d.lines(2, 3)]
    return to_file(
        f"Write {path} in lower case to {out}.",
        {path: text(lines)},
        f"tr A-Z a-z < {path} > {out}",
        (path, out),
        *(line.lower() for line in lines),
    )
