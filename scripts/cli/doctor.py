"""`grpo doctor`: check that this machine, or this run, is ready for a night."""

from __future__ import annotations

from typing import Annotated

import typer

from scripts.cli.arguments import Sandbox

app = typer.Typer()


@app.command()
def doctor(
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="Also check whether this run would start.")
    ] = None,
    reclaim: Annotated[
        bool, typer.Option("--reclaim", help="End processes that runs left behind.")
    ] = False,
    sandbox: Sandbox = "bwrap",
) -> None:
    """Check this machine; exit 4 if something would stop a night, 2 if a setting would."""
    from fieldkit.errors import BadInput, Unavailable
    from rollout.sandbox.command import SandboxSettings
    from scripts.base.invocation import say
    from scripts.doctor import checkup
    from scripts.run.config import RunConfig

    if reclaim:
        from scripts.doctor import ownership

        print("\n".join(ownership.reclaim()) or "nothing to reclaim")
    if run is None:
        findings = checkup.examine(RunConfig(sandbox=SandboxSettings(kind=sandbox)))
    else:
        from scripts.doctor.run_checks import examine_machine_for, examine_run
        from scripts.run.folder import open_run

        folder = open_run(run)
        findings = [*examine_machine_for(folder, sandbox), *examine_run(folder)]
    for finding in findings:
        say(f"{'ok  ' if finding.ok else 'BAD '} {finding.name:10} {finding.text}")
    bad = [f.name for f in findings if not f.ok]
    if bad:
        kind = BadInput if any(f.is_input for f in findings) else Unavailable
        raise kind(f"{len(bad)} of {len(findings)} checks failed: {', '.join(bad)}")
