"""Keys, a server that goes and comes, looks and sizes."""
import time

import pytest

KEY = "a key of more than sixteen characters"


def test_a_key_is_asked_for_once_and_kept_for_the_tab(server, open_page, submit, look):
    server.keys = {KEY: "anna", KEY + "2": "ben"}
    server.jobs.finish(server.jobs.accept({"prompt": "of anna"}, "anna", None))
    server.jobs.finish(server.jobs.accept({"prompt": "of ben"}, "ben", None))
    page = open_page(server, ready="document.querySelector('#key').open")
    look(page)
    page.type("wrong")
    page.press("Enter")
    page.wait("document.querySelector('#key').open && document.querySelector('#key-reason').textContent.includes('does not know')")
    page.type(KEY)
    page.press("Enter")
    page.wait("document.querySelector('#gallery img')?.naturalWidth === 512")
    assert page.text("#gallery") == "of anna" and page.value("document.querySelector('#gallery img').src.startsWith('blob:')")
    job = submit(page, "with a key")
    server.jobs.advance(job, 1)
    page.wait("document.querySelector('#queue img').naturalWidth === 64")
    page.go(server.url)
    page.wait("document.querySelector('#gallery img')?.naturalWidth === 512")
    assert page.value("localStorage.length") == 0, "a key is not kept beyond the tab"
    page.click("#key-button")
    page.wait("document.querySelector('#key').open")
    page.type(KEY + "2")
    page.press("Enter")
    page.wait("document.querySelector('#gallery')?.textContent === 'of ben'")


def test_the_state_of_the_server_is_shown(server, open_page, look):
    server.ready = False
    page = open_page(server)
    page.wait("document.querySelector('#server-state .words').textContent === 'Starting'")
    look(page)
    server.ready = True
    page.wait("document.querySelector('#server-state .words').textContent === 'Ready'")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_can_be_read_where_there_is_nothing_yet(server, open_page, look, scheme):
    look(open_page(server, scheme=scheme))


def test_a_theme_is_kept(page, server):
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.value(ground)
    page.click("#theme")
    page.click("#theme")
    assert page.value("document.querySelector('#theme').title") == "Theme: dark" and page.value(ground) != light
    page.go(server.url)
    page.wait(f"document.querySelector('#theme').title === 'Theme: dark' && {ground} !== '{light}'")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 768, 1024, 1920, 3840])
def test_it_can_be_read_at_every_width(server, open_page, look, width, scheme, tmp_path, pytestconfig):
    """With --pictures FOLDER, keeps pictures of the page."""
    folder = pytestconfig.getoption("--pictures")
    sizes = [(512, 512), (768, 512), (512, 768), (912, 512), (512, 512), (1024, 384)]
    prompts = ["A lighthouse on a cliff in the evening, the sea calm below it, painted with thick oil", "a red circle", "Bird",
               "A street in the rain, seen through the window of a café with warm light", "a blue square", "Mountains before sunrise"]
    for (w, h), prompt in zip(sizes, prompts):
        server.jobs.finish(server.jobs.accept({"prompt": prompt, "width": w, "height": h}, "", None))
    broken = server.jobs.accept({"prompt": "A very large picture", "width": 2048, "height": 2048}, "", None)
    server.jobs.end(broken, "failed", "out of memory: 41 GiB are needed", "out_of_memory")
    running = server.jobs.accept({"prompt": prompts[3], "width": 912, "height": 512}, "", None)
    server.jobs.advance(running, 12)
    server.jobs.accept({"prompt": prompts[0]}, "", None)
    page = open_page(server, width=width, height=max(900, width * 9 // 16), scheme=scheme, motion="reduce")
    page.fill("#field-prompt", prompts[0])
    page.value("document.activeElement.blur()")
    page.wait("document.querySelectorAll('#gallery img').length === 6 && [...document.querySelectorAll('#gallery img[src]')].every(each => each.naturalWidth > 0) && document.querySelector('#queue img')?.naturalWidth > 0")
    keep(page, folder, f"{width}-{scheme}")
    look(page)
    page.click("#more summary")
    page.click("[aria-controls=field-scheduler-help]")
    look(page)
    keep(page, folder, f"{width}-{scheme}-more")
    page.click("#gallery li:nth-child(3) button")
    page.wait("document.querySelector('#stage img')?.naturalWidth > 0")
    look(page)
    keep(page, folder, f"{width}-{scheme}-view")


def keep(page, folder, name):
    if folder:
        time.sleep(0.3)  # until pictures are drawn
        page.screenshot(f"{folder}/{name}.png")


def test_nothing_moves_where_less_motion_is_asked_for(server, open_page):
    page = open_page(server, motion="reduce")
    assert page.value("[...document.querySelectorAll('*')].every(each => parseFloat(getComputedStyle(each).transitionDuration) === 0)")
