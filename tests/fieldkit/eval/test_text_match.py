from __future__ import annotations

import math

import pytest

from fieldkit.eval import numeric_match


@pytest.mark.parametrize("tolerance", [-0.1, math.nan, math.inf])
def test_a_tolerance_that_makes_no_sense_is_refused(tolerance: float) -> None:
    with pytest.raises(ValueError, match="rel_tolerance"):
        numeric_match("1", "1", rel_tolerance=tolerance)
