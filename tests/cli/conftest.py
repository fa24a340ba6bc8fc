"""The fixtures of these tests, and which of them run beside which."""
import fcntl
import os
import pathlib
import tempfile

import pytest

import forks
from harness import ROOT, Box


def pytest_addoption(parser):
    parser.addoption("--program", default=os.fspath(ROOT / "build" / "tessera"), help="the program under test (build/tessera)")


def pytest_xdist_auto_num_workers():
    return len(os.sched_getaffinity(0)) + 1  # one more than cores, since many tests wait for ranks that wait


@pytest.hookimpl(trylast=True)  # after -k and -m
def pytest_collection_modifyitems(config, items):
    """PART=1/2 in the environment selects every second test, PART=2/2 the others. Those that need the machine alone come last."""
    part, parts = map(int, os.environ.get("PART", "1/1").split("/"))
    chosen = items[part - 1::parts]
    config.hook.pytest_deselected(items=[item for number, item in enumerate(items) if number % parts != part - 1])
    items[:] = sorted(chosen, key=needs_the_machine)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    """A test that is skipped has failed where TESSERA_TESTS_MAY_SKIP=none is in the environment."""
    report = yield
    if report.skipped and os.environ.get("TESSERA_TESTS_MAY_SKIP") == "none":
        report.outcome, report.longrepr = "failed", f"TESSERA_TESTS_MAY_SKIP=none forbids skipped tests: {report.longrepr[2]}"
    return report


def needs_the_machine(test):
    return test.get_closest_marker("alone") is not None


@pytest.fixture(autouse=True)
def place(request):
    """Waits until no other test of this tree runs, for one that needs the machine alone; else until no such one does."""
    folder = os.open(pathlib.Path(__file__).parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX if needs_the_machine(request.node) else fcntl.LOCK_SH)
        yield
    finally:
        os.close(folder)


@pytest.fixture(scope="session")
def program(pytestconfig):
    return os.path.realpath(pytestconfig.getoption("program"))


@pytest.fixture(scope="session")
def server(program):
    with forks.serving(program) as socket:
        yield socket


@pytest.fixture
def box(program, server):
    with tempfile.TemporaryDirectory() as folder:
        inside = pathlib.Path(folder, "box")
        inside.mkdir()
        yield Box(program, inside, server)
