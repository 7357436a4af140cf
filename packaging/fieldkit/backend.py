"""setuptools' backend, after what an earlier build left is removed: it would install modules that
are gone."""

import shutil
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403


def build_wheel(*args: Any, **settings: Any) -> str:
    """As setuptools' own."""
    shutil.rmtree("build", ignore_errors=True)
    return build_meta.build_wheel(*args, **settings)
