"""The fixtures of the page's tests: a fake server, and a browser that has opened its page."""
import pathlib
import shutil

import pytest

from fake_server import Server
from tools.browser.devtools import driven

LOOK = (pathlib.Path(__file__).parent / "look.js").read_text()
AXE = pathlib.Path(__file__).parents[2] / ".venv" / "npm" / "node_modules" / "axe-core" / "axe.min.js"
# The rules of axe-core that are run: those of WCAG 2.2 A and AA, and its advice.
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
UNNAMED = {"button", "textbox", "combobox", "checkbox", "spinbutton", "link", "dialog", "progressbar", "list", "img", "image", "group"}


def pytest_addoption(parser):
    parser.addoption("--browser", default="chromium", help="the browser that opens the page")
    parser.addoption("--pictures", help="a folder for pictures of the page")
    parser.addoption("--program", help="the program that generates a video for the page to play")


@pytest.fixture(scope="session")
def browser(pytestconfig):
    program = pytestconfig.getoption("--browser")
    if shutil.which(program) is None or not AXE.exists():
        pytest.skip(f"no {program} or no axe-core; tools/setup.sh browser installs them")
    with driven(program) as open_page:
        yield open_page


@pytest.fixture
def server():
    with Server() as fake:
        yield fake
        fake.jobs.cut_streams()
        fake.shutdown()


@pytest.fixture
def open_page(browser):
    """Opens the page of a server; what has gone wrong in it fails the test at its end."""
    pages = []

    def open_it(server, width=1280, ready="document.querySelector('#main:not([aria-busy])')", **look):
        pages.append(browser("about:blank"))
        pages[-1].look_as(width, **look)
        pages[-1].origin = server.url
        pages[-1].go(server.url)
        pages[-1].wait(ready)
        return pages[-1]

    yield open_it
    faults = [fault for page in pages for fault in page.faults()]
    for page in pages:
        page.close()
    assert not faults


@pytest.fixture
def page(open_page, server):
    return open_page(server)


@pytest.fixture
def look():
    """Looks at a page as it stands, and asserts that nobody would stumble over it."""
    def look_at(page):
        found = page.value(LOOK)
        assert not found, "\n".join(found)
        page.value(AXE.read_text() + "; 0")
        found = page.value(f"axe.run({{runOnly: {RULES}}}).then(({{violations}}) => violations.map(each => `${{each.id}}: ${{each.nodes.map(node => node.html)}}`))")
        assert not found, "\n".join(found)
        unnamed = [role for role, name in page.accessible() if role in UNNAMED - {"list", "img", "image", "group"} and not name]
        assert not unnamed, f"without a name: {unnamed}"
    return look_at


@pytest.fixture
def submit(server):
    """Generates a picture by the form, and returns the job that the server has got."""
    def submit_it(page, prompt="a red circle", **fields):
        known = set(server.jobs.jobs)
        page.fill("#field-prompt", prompt)
        for name, value in fields.items():
            page.fill(f"#field-{name}", str(value))
        page.click("#submit")
        page.wait("!document.querySelector('#submit').hasAttribute('aria-disabled') && document.querySelector('#queue li')")
        return next(job for id_, job in server.jobs.jobs.items() if id_ not in known)
    return submit_it
