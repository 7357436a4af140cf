"""Memory of host and GPU: how much is available, who holds it, and waiting until it is back.

Before a program starts what needs memory it calls `wait_until_available`; after it ended what held
memory it proves with `Reclaim` that the memory came back. No process is signalled here. Linux only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fieldkit.lazy import lazily

if TYPE_CHECKING:
    from fieldkit.gate.memory import GIB as GIB
    from fieldkit.gate.memory import Available as Available
    from fieldkit.gate.memory import Holder as Holder
    from fieldkit.gate.memory import Reclaim as Reclaim
    from fieldkit.gate.memory import available as available
    from fieldkit.gate.memory import describe_holders as describe_holders
    from fieldkit.gate.memory import held_by as held_by
    from fieldkit.gate.memory import top_holders as top_holders
    from fieldkit.gate.memory import wait_until_available as wait_until_available
    from fieldkit.gate.patience import Patience as Patience
else:
    __getattr__, __dir__ = lazily(__name__)
