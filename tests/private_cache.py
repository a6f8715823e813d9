"""A cache of their own for tests that read captures: that of the developer is left alone."""

import os
from collections.abc import Iterator
from unittest import mock

import pytest


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with mock.patch.dict(os.environ, XDG_CACHE_HOME=str(tmp_path_factory.mktemp("cache"))):
        yield
