"""A process that hangs in a driver cannot be killed, and must not hang its sandbox."""

from __future__ import annotations

import asyncio
import signal

import pytest

from fieldkit.errors import Unavailable
from rollout.sandbox import child as module
from rollout.sandbox.child import Child
from rollout.sandbox.output import BoundedOutput


def test_a_process_that_outlives_sigkill_is_an_error_and_stops_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "GONE_SECONDS", 0.2)
    monkeypatch.setattr(module, "_REAP_SECONDS", 0.2)
    monkeypatch.setattr(Child, "kill", lambda self: None)  # as it is for one in a driver

    async def main() -> None:
        hanging = Child(["/bin/sleep", "60"], BoundedOutput(100, 100), env={})
        process = hanging._process
        try:
            with pytest.raises(Unavailable, match=r"a command outlived SIGKILL by 0\.2 s"):
                await hanging.reap()
            hanging.close()
            assert process.returncode is None
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()

    asyncio.run(main())
