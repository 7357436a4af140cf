"""Easy operations: one command is enough, and no file has to be read first."""

from __future__ import annotations

from rollout.synth.operation import (
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


@operation("easy")
def create(d: Draw) -> Piece:
    path, line = d.file(), " ".join(d.words(2))
    return Piece(
        d.phrase(
            f"Create {path} with the text '{line}'.",
            f"Write '{line}' to a new file {path}.",
            f"Make a file {path} that says '{line}'.",
        ),
        {},
        (f"echo '{line}' > {path}",),
        (exists(path), exactly(path, line)),
        ("ls",),
        (f"cat {path}",),
    )


@operation("easy")
def append(d: Draw) -> Piece:
    path, lines, line = d.file(), d.lines(2, 3), " ".join(d.words(2))
    return Piece(
        d.phrase(
            f"Append the line '{line}' to {path}.",
            f"Add '{line}' at the end of {path}.",
        ),
        {path: text(lines)},
        (f"echo '{line}' >> {path}",),
        (contains(path, line), exactly(path, *lines, line)),
        (f"cat {path}",),
        (f"cat {path}", f"tail -n 1 {path}"),
    )


@operation("easy")
def rename(d: Draw) -> Piece:
    old, new, lines = d.file(), d.file(), d.lines(2, 3)
    return Piece(
        d.phrase(f"Rename {old} to {new}.", f"Give {old} the new name {new}."),
        {old: text(lines)},
        (f"mv {old} {new}",),
        (exactly(new, *lines), gone(old)),
        ("ls",),
        ("ls",),
    )


@operation("easy")
def copy(d: Draw) -> Piece:
    old, new, lines = d.file(), d.file(), d.lines(2, 3)
    return Piece(
        d.phrase(f"Copy {old} to {new}.", f"Make a copy of {old} called {new}."),
        {old: text(lines)},
        (f"cp {old} {new}",),
        (exists(new), exactly(new, *lines)),
        ("ls",),
        (f"cat {new}", "ls"),
    )


@operation("easy")
def delete(d: Draw) -> Piece:
    path, lines = d.file(), d.lines(2, 3)
    return Piece(
        d.phrase(f"Delete {path}.", f"Remove the file {path}."),
        {path: text(lines)},
        (f"rm {path}",),
        (gone(path),),
        ("ls",),
        ("ls",),
    )


@operation("easy")
def replace_word(d: Draw) -> Piece:
    path, lines = d.file(), d.lines(2, 3)
    old, new = d.rng.choice(lines), d.word()
    after = [new if line == old else line for line in lines]
    return Piece(
        d.phrase(
            f"Replace the word {old} with {new} in {path}.",
            f"In {path}, change {old} to {new}.",
        ),
        {path: text(lines)},
        (f"sed -i 's/{old}/{new}/g' {path}",),
        (contains(path, new), lacks(path, old), exactly(path, *after)),
        (f"cat {path}",),
        (f"cat {path}", f"grep {new} {path}"),
    )


@operation("easy")
def count_lines(d: Draw) -> Piece:
    path, out, lines = d.file(), d.file("txt"), d.lines(3, 6)
    return to_file(
        d.phrase(
            f"Write only the number of lines in {path} to {out}.",
            f"Count the lines of {path} and put just the number in {out}.",
        ),
        {path: text(lines)},
        f"wc -l < {path} > {out}",
        (path, out),
        str(len(lines)),
    )


@operation("easy")
def make_folder(d: Draw) -> Piece:
    folder, name, line = d.folder(), d.file("txt"), d.word()
    return Piece(
        d.phrase(
            f"Create a folder {folder} and in it a file {name} with the text '{line}'.",
            f"Make the folder {folder} and write '{line}' to {folder}/{name}.",
        ),
        {},
        (f"mkdir -p {folder}", f"echo '{line}' > {folder}/{name}"),
        (exists(f"{folder}/{name}"), exactly(f"{folder}/{name}", line)),
        ("ls",),
        (f"cat {folder}/{name}", f"ls {folder}"),
    )
