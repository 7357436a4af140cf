"""Hard operations: what to write depends on the contents of the files."""

from __future__ import annotations

from rollout.synth.operation import (
    HELDOUT,
    Draw,
    Piece,
    contains,
    csv_text,
    exactly,
    exists,
    gone,
    operation,
    table_rows,
    text,
    to_file,
)


@operation("hard")
def sum_column(d: Draw) -> Piece:
    path, out, rows = d.file("csv"), d.file("txt"), table_rows(d)
    return to_file(
        d.phrase(
            f"Add up the numbers in column 2 of {path} and write the sum to {out}.",
            f"Write the total of the second column of {path} to {out}.",
        ),
        {path: csv_text(rows)},
        f"awk -F, '{{s+=$2}} END {{print s}}' {path} > {out}",
        (path, out),
        str(sum(v for _, v in rows)),
    )


@operation("hard")
def largest_row(d: Draw) -> Piece:
    path, out, rows = d.file("csv"), d.file("txt"), table_rows(d)
    name = max(rows, key=lambda row: row[1])[0]
    return to_file(
        d.phrase(
            f"Write the name with the largest number in {path} to {out}.",
            f"Find the row of {path} with the highest value and write its name to {out}.",
        ),
        {path: csv_text(rows)},
        f"sort -t, -k2 -n {path} | tail -n 1 | cut -d, -f1 > {out}",
        (path, out),
        name,
    )


@operation("hard", only_in=HELDOUT)
def smallest_row(d: Draw) -> Piece:
    path, out, rows = d.file("csv"), d.file("txt"), table_rows(d)
    name = min(rows, key=lambda row: row[1])[0]
    return to_file(
        f"Write the name with the smallest number in {path} to {out}.",
        {path: csv_text(rows)},
        f"sort -t, -k2 -n {path} | head -n 1 | cut -d, -f1 > {out}",
        (path, out),
        name,
    )


@operation("hard")
def rows_above(d: Draw) -> Piece:
    path, out, rows = d.file("csv"), d.file("txt"), table_rows(d)
    values = sorted(v for _, v in rows)
    limit = values[len(values) // 2] - 1
    hits = [f"{n},{v}" for n, v in rows if v > limit]
    return to_file(
        d.phrase(
            f"Write the rows of {path} whose number is above {limit} to {out}.",
            f"Put the rows of {path} with a value greater than {limit} in {out}.",
        ),
        {path: csv_text(rows)},
        f"awk -F, '$2 > {limit}' {path} > {out}",
        (path, out),
        *hits,
    )


@operation("hard", only_in=HELDOUT)
def rows_below(d: Draw) -> Piece:
    path, out, rows = d.file("csv"), d.file("txt"), table_rows(d)
    limit = sorted(v for _, v in rows)[len(rows) // 2] + 1
    hits = [f"{n},{v}" for n, v in rows if v < limit]
    return to_file(
        f"Write the rows of {path} whose number is below {limit} to {out}.",
        {path: csv_text(rows)},
        f"awk -F, '$2 < {limit}' {path} > {out}",
        (path, out),
        *hits,
    )


@operation("hard")
def value_of_key(d: Draw) -> Piece:
    path, out = d.file("cfg"), d.file("txt")
    settings = {d.key(): d.number(10, 999) for _ in range(4)}
    key = d.rng.choice(list(settings))
    return to_file(
        d.phrase(
            f"Write the value of {key} in {path} to {out}.",
            f"Look up {key} in {path} and put only its value in {out}.",
        ),
        {path: text([f"{k}={v}" for k, v in settings.items()])},
        f"grep '^{key}=' {path} | cut -d= -f2 > {out}",
        (path, out),
        str(settings[key]),
    )


@operation("hard")
def condition(d: Draw) -> Piece:
    path, out, lines = d.file(), d.file("txt"), d.lines(3, 4)
    word = d.rng.choice(lines) if d.rng.random() < 0.5 else d.word()
    answer = "yes" if word in lines else "no"
    return to_file(
        d.phrase(
            f"If {path} contains {word}, write yes to {out}, otherwise write no.",
            f"Write yes to {out} if the word {word} is in {path}, and no if it is not.",
        ),
        {path: text(lines)},
        f"if grep -q {word} {path}; then echo yes > {out}; else echo no > {out}; fi",
        (path, out),
        answer,
    )


@operation("hard")
def find_and_move(d: Draw) -> Piece:
    folder, word = d.folder(), d.word()
    names = [d.file("txt") for _ in range(3)]
    files = {name: text(d.lines(2, 2)) for name in names}
    hit = d.rng.choice(names)
    files[hit] += f"{word}\n"
    return Piece(
        d.phrase(
            f"Move the .txt file that contains {word} into the folder {folder}.",
            f"One .txt file contains {word}. Move it into a new folder {folder}.",
        ),
        files,
        (f"mkdir -p {folder}", f"mv $(grep -l {word} *.txt) {folder}/"),
        (exists(f"{folder}/{hit}"), gone(hit), contains(f"{folder}/{hit}", word)),
        (f"grep -l {word} *.txt",),
        (f"ls {folder}", "ls"),
    )


@operation("hard")
def named_file(d: Draw) -> Piece:
    pointer, out = d.file("txt"), d.file("md")
    names = [d.file("dat") for _ in range(2)]
    files = {name: text(d.lines(2, 2)) for name in names}
    hit = d.rng.choice(names)
    return Piece(
        d.phrase(
            f"The file {pointer} holds the name of another file. Copy that file to {out}.",
            f"Copy the file whose name is in {pointer} to {out}.",
        ),
        {pointer: f"{hit}\n", **files},
        (f"cp $(cat {pointer}) {out}",),
        (exists(out), exactly(out, *files[hit].split())),
        (f"cat {pointer}",),
        (f"cat {out}",),
    )


@operation("hard")
def append_each(d: Draw) -> Piece:
    ext, line = d.rng.choice(("md", "log", "dat")), d.word()
    files = {d.file(ext): text(d.lines(2, 2)) for _ in range(2)}
    return Piece(
        d.phrase(
            f"Append the line '{line}' to every .{ext} file.",
            f"Add '{line}' at the end of each .{ext} file.",
        ),
        files,
        (f"for f in *.{ext}; do echo '{line}' >> $f; done",),
        tuple(exactly(name, *body.split(), line) for name, body in files.items()),
        ("ls",),
        (f"cat *.{ext}", f"tail -n 1 *.{ext}"),
    )


@operation("hard")
def copy_key(d: Draw) -> Piece:
    source, target, key = d.file("cfg"), d.file("cfg"), d.key()
    others = [d.key() for _ in range(2)]
    value, old = d.number(100, 999), d.number()
    before = {key: old, **{k: d.number() for k in others}}
    after = {**before, key: value}
    return Piece(
        d.phrase(
            f"Set {key} in {target} to the value that {key} has in {source}.",
            f"Copy the value of {key} from {source} to {target}.",
        ),
        {
            source: text([f"{others[0]}={d.number()}", f"{key}={value}"]),
            target: text([f"{k}={v}" for k, v in before.items()]),
        },
        (f'sed -i "s/^{key}=.*/$(grep ^{key}= {source})/" {target}',),
        (
            contains(target, f"{key}={value}"),
            exactly(target, *(f"{k}={v}" for k, v in after.items())),
        ),
        (f"cat {source}", f"cat {source} {target}"),
        (f"cat {target}",),
    )


@operation("hard")
def count_files(d: Draw) -> Piece:
    ext, out = d.rng.choice(("csv", "log", "dat")), d.file("txt")
    files = {d.file(ext): f"{d.word()}\n" for _ in range(d.rng.randint(2, 4))}
    return Piece(
        d.phrase(
            f"Write the number of .{ext} files to {out}.",
            f"Count the .{ext} files and put only the number in {out}.",
        ),
        files,
        (f"ls *.{ext} | wc -l > {out}",),
        (exists(out), exactly(out, str(len(files)))),
        ("ls",),
        (f"cat {out}",),
    )
