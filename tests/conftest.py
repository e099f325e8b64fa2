"""What all tests share: one thread each (they run side by side), a token for Ray, and where the browser is."""

from __future__ import annotations

import os
import secrets

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "agg")
# Ray keeps a token in the home folder unless it is given one, and reads its mode when it is imported.
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
os.environ.setdefault("RAY_AUTH_MODE", "token")
# Triton reads it when it is imported, which torch.compile may do before the tests of the Triton kernels.
os.environ.setdefault("TRITON_INTERPRET", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_worker_niceness", "0")  # its workers would wait for all other tests

import gc
import shutil
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def browser() -> Iterator[object]:
    """A real Chromium. Without one its tests are skipped, except where it is required, as in CI."""
    program = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        message = "no Chromium on this machine (apt-get install chromium)"
        (pytest.fail if os.environ.get("DST_REQUIRE_BROWSER") else pytest.skip)(message)
    from playwright.sync_api import sync_playwright

    quiet = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=[*quiet, "--disable-sync", "--disable-quic"])
        yield started
        started.close()


def _train_here(patch: pytest.MonkeyPatch) -> None:
    from dst_analyze.sweep.engines.engine import InProcessEngine

    patch.setattr("dst_analyze.sweep.engines.forkserver.start_forkserver", lambda: None)
    patch.setattr("dst_analyze.sweep.engines.workers.ProcessEngine", lambda jobs, request: InProcessEngine())


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials run in this process: workers have their own tests, and each run's would import torch once more."""
    _train_here(monkeypatch)


@pytest.fixture(scope="module")
def inline_module() -> Iterator[pytest.MonkeyPatch]:
    """The same for a whole module, and what else it patches."""
    with pytest.MonkeyPatch.context() as patch:
        _train_here(patch)
        yield patch


@pytest.fixture(scope="module")
def warm() -> Iterator[None]:
    """The server that workers are forked from lives on from run to run, where each would import torch for its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dst_analyze.sweep.engines.forkserver.stop_forkserver", lambda: None)
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, warm: None) -> dict[str, bytes]:
    """The sweep that nobody disturbs, with one worker."""
    from crashing import ARGS, finish, write
    from run_folders import files_of

    folder = tmp_path_factory.mktemp("whole")
    write(folder)
    finish(folder, *ARGS, "--jobs", "1")
    return files_of(folder / "run")


SLOWEST = ("test_ray.py", "test_notebooks.py", "test_crashes.py", "test_own_loop.py", "test_screen.py", "test_cli.py")
"""Files whose tests take longest: they start first, so that no worker is left alone with them at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of the slowest files first, those of a file together."""
    places = {name: place for place, name in enumerate(SLOWEST)}
    items.sort(key=lambda item: places.get(item.path.name, len(places)))


def pytest_collection_finish() -> None:
    """Set aside what is imported by now: it stays to the end, and each collection of garbage would walk over it."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Give it back: at the end of the process Triton reports as leaked what is not collected."""
    gc.unfreeze()
