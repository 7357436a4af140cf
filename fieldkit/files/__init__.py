"""Files and folders that appear whole or not at all, and an append-only journal.

Writers here survive a kill between any two instructions and a loss of power: temporary name, fsync,
rename, fsync of the folder. Readers leave out a line that a crash cut short.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fieldkit.lazy import lazily

if TYPE_CHECKING:
    from fieldkit.files.atomic import append_line as append_line
    from fieldkit.files.atomic import drop_torn_tail as drop_torn_tail
    from fieldkit.files.atomic import locked as locked
    from fieldkit.files.atomic import read_json as read_json
    from fieldkit.files.atomic import read_lines as read_lines
    from fieldkit.files.atomic import sha256_file as sha256_file
    from fieldkit.files.atomic import sweep_temporaries as sweep_temporaries
    from fieldkit.files.atomic import whole_dir as whole_dir
    from fieldkit.files.atomic import write_bytes as write_bytes
    from fieldkit.files.atomic import write_json as write_json
    from fieldkit.files.atomic import write_text as write_text
    from fieldkit.files.journal import Entry as Entry
    from fieldkit.files.journal import Journal as Journal
    from fieldkit.files.journal import Mark as Mark
else:
    __getattr__, __dir__ = lazily(__name__)
