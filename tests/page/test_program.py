"""The page on a server that paints: `tessera serve` with the models that ship."""
import os
import signal
import subprocess

import pytest

from tests.cli.server import Server

TILES = "document.querySelectorAll('#gallery li').length"
STEP = "Number(document.querySelector('#queue .words')?.textContent.match(/^Step (\\d+)/)?.[1] ?? 0)"
PROMPT = "a red circle above a blue square on a white background"
KEY = "a-key-of-more-than-sixteen-characters"


@pytest.fixture
def serve(pytestconfig, tmp_path):
    program = pytestconfig.getoption("--program")
    if program is None:
        pytest.skip("no --program that serves")
    servers = []

    def start(*words):
        servers.append(Server(program, tmp_path, *words).start())
        return servers[-1]

    yield start
    for server in servers:
        server.kill()


def generate(page, **fields):
    page.fill("#field-prompt", PROMPT)
    for name, value in fields.items():
        page.fill(f"#field-{name}", str(value))
    page.click("#submit")
    page.wait("document.querySelector('#queue li')")


def bytes_shown(page, selector):
    """The bytes behind the address of an element."""
    return bytes(page.value(f"fetch(document.querySelector('{selector}').src).then(each => each.arrayBuffer()).then(each => [...new Uint8Array(each)])"))


def test_a_picture_is_made_taken_apart_and_deleted(serve, open_page, look, tmp_path):
    server = serve("--model", "shapes", "--dtype", "fp32")
    page = open_page(server)
    assert page.value("[...document.querySelector('#field-scheduler').list.options].some(each => each.value === 'dpm++')")
    generate(page, num_inference_steps=60, seed=2**63 + 1)
    page.wait("document.querySelector('#queue img')?.naturalWidth > 0")
    look(page)
    page.wait(f"{TILES} === 1 && document.querySelector('#gallery img').naturalWidth === 128 && document.querySelector('#queue-part').hidden")
    (tmp_path / "shown.png").write_bytes(bytes_shown(page, "#gallery img"))
    subprocess.run([server.program, "generate", PROMPT, "--model", "shapes", "--dtype", "fp32", "--num-inference-steps", "60", "--seed",
                    str(2**63 + 1), "--quiet", "-o", tmp_path / "same.png"], check=True, stdout=subprocess.DEVNULL)
    assert (tmp_path / "shown.png").read_bytes() == (tmp_path / "same.png").read_bytes()
    page.click("#reset")
    assert page.value("document.querySelector('#field-prompt').value") == ""
    page.drop_file(tmp_path / "same.png")
    page.wait("document.querySelector('#notice').textContent.includes('settings taken from same.png')")
    fields = page.value("Object.fromEntries([...document.querySelectorAll('#form [name]')].map(input => [input.name, input.value]))")
    assert (fields["prompt"], fields["seed"], fields["num_inference_steps"]) == (PROMPT, str(2**63 + 1), "60"), fields
    page.click("#gallery button")
    page.wait("document.querySelector('#stage img')?.naturalWidth === 128")
    look(page)
    page.click("#viewer-delete")
    page.click("#confirm-yes")
    page.wait(f"{TILES} === 0 && !document.querySelector('#viewer').open")
    assert server.json("GET", "/v1/jobs")["data"] == []
    page.fill("#field-num_inference_steps", "251")
    page.click("#submit")
    page.wait("!document.querySelector('#field-num_inference_steps-error').hidden")  # at most 250 on this server


def test_jobs_end_between_two_steps(serve, open_page):
    server = serve("--model", "shapes-xl")
    page = open_page(server)
    generate(page, num_inference_steps=250)
    generate(page, seed=5)
    page.wait(f"{STEP} >= 1")
    page.click("#queue li:nth-child(2) .ends button")
    page.wait("document.querySelectorAll('#queue li').length === 1")
    page.click("#queue li .ends button")
    page.click("#confirm-yes")
    page.wait("document.querySelector('#queue-part').hidden")
    assert {job["state"] for job in server.json("GET", "/v1/jobs")["data"]} == {"cancelled"}


def test_a_key_is_needed(serve, open_page, tmp_path):
    keys = tmp_path / "keys.txt"
    keys.write_text(f"anna {KEY}\n")
    keys.chmod(0o600)
    page = open_page(serve("--model", "shapes", "--api-keys", keys), ready="document.querySelector('#key').open")
    page.type("another-key-of-more-than-sixteen")
    page.press("Enter")
    page.wait("document.querySelector('#key-reason').textContent.includes('does not know')")
    page.type(KEY)
    page.press("Enter")
    page.wait("document.querySelector('#main:not([aria-busy])')")
    generate(page, num_inference_steps=30)
    page.wait("document.querySelector('#queue img')?.src.startsWith('blob:')")
    page.wait("document.querySelector('#gallery img')?.naturalWidth === 128")


def test_a_job_outlives_the_front_and_the_server(serve, open_page):
    server = serve("--model", "shapes", "--drain", "0")
    page = open_page(server)
    generate(page, num_inference_steps=100)
    page.wait(f"{STEP} >= 3")
    os.kill(server.processes()["tessera:front"][0], signal.SIGKILL)
    page.wait(f"{STEP} >= 10")
    assert server.stop() == 0
    page.wait("document.querySelector('#server-state .words').textContent === 'No connection'")
    server.start()
    page.wait("document.querySelector('#server-state .words').textContent === 'Ready'")
    page.wait("document.querySelector('#gallery img')?.naturalWidth === 128")
    assert [job["state"] for job in server.json("GET", "/v1/jobs")["data"]] == ["succeeded"]


def test_a_video_is_made_and_plays(serve, open_page, look):
    page = open_page(serve("--model", "shapes-video"))
    assert page.value("document.querySelector('#field-scheduler')") is None, "the model has a sampler of its own"
    assert page.text("label[for=field-num_images_per_prompt]") == "Videos"
    generate(page, num_inference_steps=6)
    page.wait("document.querySelector('#queue img')?.naturalWidth > 0")
    page.wait(f"{TILES} === 1 && document.querySelector('#gallery video').videoWidth === 128")
    page.click("#gallery button")
    page.wait("document.querySelector('#stage video')?.duration > 0.6")
    page.value("document.querySelector('#stage video').play().then(() => 1)")
    page.wait("document.querySelector('#stage video').currentTime > 0")
    look(page)
    page.press("Escape")
    generate(page, num_frames=1, num_inference_steps=2)
    page.wait(f"{TILES} === 2 && document.querySelector('#gallery img').naturalWidth === 128")
