"""`grpo doctor`: check that this machine, or this run, is ready for a night."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from scripts.cli.arguments import Json, Sandbox, print_json

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
    json_: Json = False,
) -> None:
    """Check this machine; exit 4 if something would stop a night, 2 if a setting would.

    Example: grpo doctor tonight
    """
    from dataclasses import asdict

    from fieldkit.errors import BadInput, Unavailable
    from rollout.sandbox.command import SandboxSettings
    from scripts.base.invocation import say
    from scripts.doctor import checkup
    from scripts.run.config import RunConfig

    if reclaim:
        from scripts.doctor import ownership

        said = "\n".join(ownership.reclaim()) or "nothing to reclaim"
        print(said, file=sys.stderr if json_ else sys.stdout)
    if run is None:
        findings = checkup.examine(RunConfig(sandbox=SandboxSettings(kind=sandbox)))
    else:
        from scripts.doctor.run_checks import examine_machine_for, examine_run
        from scripts.run.folder import open_run

        folder = open_run(run)
        machine = examine_machine_for(folder, sandbox)
        has_model = all(f.ok for f in machine if f.name == "model")
        findings = [*machine, *examine_run(folder, sandbox, has_model=has_model)]
    if json_:
        print_json([asdict(f) for f in findings])
    for finding in () if json_ else findings:
        mark = "ok" if finding.ok else "BAD" if finding.failed else "-"
        say(f"{mark:4} {finding.name:10} {finding.text}")
    bad = [f.name for f in findings if f.failed]
    if bad:
        kind = BadInput if any(f.is_input for f in findings) else Unavailable
        raise kind(f"{len(bad)} of {len(findings)} checks failed: {', '.join(bad)}")
