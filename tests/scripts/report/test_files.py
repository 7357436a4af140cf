"""Where the page may be written."""

from __future__ import annotations

from pathlib import Path

import pytest

from fieldkit.errors import BadInput
from scripts.evidence.findings import read_findings
from scripts.report.files import write_report
from tests.scripts.made_night import make_night


def test_a_page_is_written_over_no_other_file_of_the_run(tmp_path: Path) -> None:
    night = make_night(tmp_path, n_steps=1)
    found, manifest = read_findings(night.folder, night.config), night.folder.manifest
    before = manifest.read_bytes()
    with pytest.raises(BadInput, match="this file belongs to a run; name another"):
        write_report(found, manifest)
    assert manifest.read_bytes() == before
    assert write_report(found) == night.folder.path / "report.html"
