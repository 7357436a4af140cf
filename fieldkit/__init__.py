"""fieldkit: what a reinforcement-learning loop for language models needs around its own code.

The rooms, each a package with its own documented names:

- `fieldkit.training`: a reference policy without a second model, how far weights moved, losses,
  advantages, checks of adapter files;
- `fieldkit.eval`: assertions on files, pass@k, paired comparison, a judge;
- `fieldkit.reward`: any score of a text as a reward;
- `fieldkit.lineage`: which adapter came from which, with what outcome;
- `fieldkit.client`: chat completions of any OpenAI-compatible server;
- `fieldkit.nim`: the same client by the names of the index's fieldkit, and texts in chunks;
- `fieldkit.process`: processes that are owned, found again after a crash and ended whole;
- `fieldkit.gate`: memory that is measured, waited for and proven to have come back;
- `fieldkit.files`: files that appear whole or not at all, and an append-only journal.

Every expected failure is a `FieldkitError`; bad input is a `ValueError` too. Importing this package
imports none of the rooms, and no room imports torch before it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fieldkit.lazy import lazily

if TYPE_CHECKING:
    from fieldkit import client as client
    from fieldkit import eval as eval
    from fieldkit import files as files
    from fieldkit import gate as gate
    from fieldkit import lineage as lineage
    from fieldkit import nim as nim
    from fieldkit import process as process
    from fieldkit import reward as reward
    from fieldkit import training as training
    from fieldkit.errors import AlreadySwapped as AlreadySwapped
    from fieldkit.errors import BadInput as BadInput
    from fieldkit.errors import FieldkitError as FieldkitError
    from fieldkit.errors import MissingFile as MissingFile
    from fieldkit.errors import Shortage as Shortage
    from fieldkit.errors import Unavailable as Unavailable
else:
    __getattr__, __dir__ = lazily(__name__)

__version__ = "0.1.0"
