from __future__ import annotations

from typing import Any

import pytest

import rollout.sandbox.bwrap
import rollout.sandbox.command
from fieldkit.errors import BadInput, Unavailable
from rollout.sandbox.base import SandboxSettings, forbidding_setting, probe


def settings(**changes: Any) -> SandboxSettings:
    return SandboxSettings(**{"command_seconds": 60.0, **changes})


def test_a_missing_program_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout.sandbox.command, "_TOOL_PATH", "/nowhere")
    with pytest.raises(Unavailable, match=r"needs bwrap, .*apt-get install .*bubblewrap"):
        probe(settings())


def test_the_probe_passes_here() -> None:
    probe(settings())


async def test_the_probe_may_be_called_from_an_event_loop() -> None:
    probe(settings())


async def test_a_probe_that_fails_says_what_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout.sandbox.bwrap, "_BOX", ["--unshare-everything"])
    with pytest.raises(Unavailable, match="Unknown option --unshare-everything"):
        probe(settings())


async def test_a_bubblewrap_without_an_option_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout.sandbox.bwrap, "_BOX", ["--disable-everything"])
    with pytest.raises(Unavailable, match=r"needs bubblewrap 0\.8 or newer"):
        probe(settings())


@pytest.mark.parametrize(
    ("path", "text", "says"),
    [
        (
            "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
            "1\n",
            "echo kernel.apparmor_restrict_unprivileged_userns=0 | sudo tee",
        ),
        (
            "/proc/sys/kernel/unprivileged_userns_clone",
            "0\n",
            "echo kernel.unprivileged_userns_clone=1 | sudo tee",
        ),
        (
            "/proc/sys/user/max_user_namespaces",
            "0\n",
            "echo user.max_user_namespaces=10000 | sudo tee",
        ),
        ("/proc/self/status", "Name:\tx\nSeccomp:\t2\n", "seccomp=unconfined"),
        ("/proc/self/attr/current", "docker-default (enforce)\n", "apparmor=unconfined"),
        ("/proc/self/mounts", "tmpfs /proc/kcore tmpfs rw 0 0\n", "systempaths=unconfined"),
    ],
)
def test_the_setting_that_forbids_it_is_named(path: str, text: str, says: str) -> None:
    reason = forbidding_setting(lambda asked: text if asked == path else "")
    assert says in reason
    assert "--sandbox none" in reason


def test_a_host_that_forbids_nothing_has_no_reason() -> None:
    assert forbidding_setting(lambda path: "") == ""


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"kind": "docker"}, "sandbox.kind: expected one of 'bwrap', 'none', found 'docker'"),
        ({"command_seconds": 0}, "sandbox.command_seconds: expected a finite number above 0"),
        ({"workspace_bytes": -1}, "sandbox.workspace_bytes"),
        ({"output_chars": float("nan")}, "sandbox.output_chars"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        settings(**changes)
