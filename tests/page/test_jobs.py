"""The queue and the results: what the page shows of jobs, and what it does with them."""
import subprocess

import pytest

CARD = "document.querySelector('#queue li')"
TILES = "document.querySelectorAll('#gallery li').length"


def words(page, place=1):
    return page.text(f"#queue li:nth-child({place}) .words")


def test_a_job_waits_runs_and_becomes_a_picture(page, server, submit, look):
    job = submit(page, "a boat", num_inference_steps=4)
    assert words(page) == "Next · begins in about 12 s" and page.text(".tag") == "Waiting"
    server.jobs.advance(job, 1)
    page.wait(f"{CARD}.querySelector('.words').textContent === 'Step 1 of 4'")
    page.wait(f"{CARD}.querySelector('img').src.startsWith('blob:') && {CARD}.querySelector('img').naturalWidth === 64")
    assert page.value(f"[{CARD}.querySelector('progress').value, {CARD}.querySelector('progress').max]") == [1, 4]
    assert page.value("document.title") == "25 % · Tessera"
    look(page)
    server.jobs.advance(job, 2)
    page.wait(f"{CARD}.querySelector('.words').textContent.startsWith('Step 2 of 4 · about ')")
    server.jobs.finish(job)
    page.wait(f"{TILES} === 1 && document.querySelector('#queue-part').hidden")
    page.wait("document.querySelector('#gallery img').naturalWidth === 512")
    assert page.value("document.title") == "Tessera"
    page.wait("document.querySelector('#live').textContent === 'Finished: 1 picture.'")
    look(page)


def test_screen_readers_hear_quarters_and_not_steps(page, server, submit):
    job = submit(page, num_inference_steps=8)
    server.jobs.advance(job, 0)
    page.wait("document.querySelector('#live').textContent === 'A job has begun.'")
    page.value("(window.heard = [], new MutationObserver(() => live.textContent && heard.push(live.textContent)).observe(live, {childList: true}), 0)")
    for step in range(1, 5):
        server.jobs.advance(job, step)
        page.wait(f"{CARD}.querySelector('.words').textContent.startsWith('Step {step} ')")
    page.wait("heard.length >= 1 && heard.at(-1) === '50 percent.'")
    assert set(page.value("heard")) <= {"25 percent.", "50 percent."}


def test_previews_are_of_the_shape_of_the_picture_and_nothing_moves(page, server, submit):
    job = submit(page, width=768, height=256)
    before = page.value(f"{CARD}.getBoundingClientRect().height")
    server.jobs.advance(job, 3)
    page.wait(f"{CARD}.querySelector('img').naturalWidth === 96")
    server.jobs.advance(job, 17)
    page.wait(f"{CARD}.querySelector('.words').textContent.startsWith('Step 17')")
    assert page.value(f"{CARD}.getBoundingClientRect().height") == before


def test_a_stream_that_is_cut_goes_on_behind_its_last_event(page, server, submit):
    job = submit(page)
    server.jobs.advance(job, 5)
    page.wait(f"{CARD}.querySelector('.words').textContent.startsWith('Step 5')")
    server.jobs.cut_streams()
    page.wait("performance.getEntriesByType('resource').length")
    server.jobs.advance(job, 6)
    page.wait(f"{CARD}.querySelector('.words').textContent.startsWith('Step 6')")
    again = [headers["Last-Event-ID"] for _, path, headers in server.seen if "/events" in path and "Last-Event-ID" in headers]
    assert again and int(again[0]) >= server.jobs.events[job["id"]][-3][0] - 5


def test_jobs_are_cancelled(page, server, submit):
    waiting, running = submit(page, "first"), submit(page, "second")
    server.jobs.advance(running, 2)
    page.wait(f"{CARD}.dataset.state === 'running'")
    assert page.text("#queue li:first-child .prompt") == "second", "what runs comes first"
    page.click("#queue li:nth-child(2) .ends button")
    page.wait("document.querySelectorAll('#queue li').length === 1")
    assert waiting["state"] == "cancelled"
    page.click("#queue li .ends button")
    page.wait("document.querySelector('#confirm').open")
    page.press("Escape")
    assert running["state"] == "running", "a running job is cancelled when that is confirmed"
    page.click("#queue li .ends button")
    page.click("#confirm-yes")
    page.wait("document.querySelector('#queue-part').hidden")
    assert running["state"] == "cancelled"


def test_a_job_that_failed_says_why_and_gives_its_settings_back(page, server, submit, look):
    job = submit(page, "too large", seed=5)
    server.jobs.end(job, "failed", "out of memory: 41 GiB are needed", "out_of_memory")
    page.wait(f"{CARD}.dataset.state === 'failed'")
    assert words(page) == "out of memory: 41 GiB are needed" and page.text(".tag") == "Failed"
    page.wait("document.querySelector('#live').textContent.includes('out of memory')")
    look(page)
    page.fill("#field-prompt", "")
    page.click("#queue li .ends button:nth-child(2)")
    assert page.value("[document.querySelector('#field-prompt').value, document.querySelector('#field-seed').value]") == ["too large", "5"]
    page.click("#queue li .ends button:nth-child(1)")
    page.wait("document.querySelector('#queue-part').hidden")
    assert server.jobs.jobs == {}


def test_what_a_server_warns_of_is_shown(page, server, submit, look):
    job = submit(page, "a very long prompt", seed=5)
    assert page.value("document.querySelector('#queue .warnings').hidden")
    server.jobs.advance(job, 1)
    server.jobs.warn(job, "[tokenizer] the prompt is cut")
    page.wait("document.querySelector('#queue .warnings').textContent === '[tokenizer] the prompt is cut'")
    server.jobs.warn(job, "eta has no effect")
    page.wait("document.querySelectorAll('#queue .warnings li').length === 2")
    look(page)
    server.jobs.finish(job)
    page.wait(f"{TILES} === 1")
    page.click(".tile")
    page.wait("document.querySelectorAll('#viewer-warnings li').length === 2")
    assert page.text("#viewer-warnings li:nth-child(2)") == "eta has no effect"
    look(page)
    page.click("#viewer-close")
    server.jobs.finish(submit(page, "a red circle"))
    page.wait(f"{TILES} === 2")
    page.click("#gallery li:first-child .tile")
    page.wait("document.querySelector('#viewer-prompt').textContent === 'a red circle'")
    assert page.value("document.querySelector('#viewer-warnings').hidden")


def test_what_others_of_the_owner_did_is_there(server, open_page):
    done = server.jobs.accept({"prompt": "from elsewhere", "num_images_per_prompt": 3}, "", None)
    server.jobs.finish(done)
    server.jobs.accept({"prompt": "still waits"}, "", None)
    page = open_page(server)
    page.wait(f"{TILES} === 3 && document.querySelectorAll('#queue li').length === 1")
    later = server.jobs.accept({"prompt": "later"}, "", None)
    page.wait("document.querySelectorAll('#queue li').length === 2")
    server.jobs.delete(done)
    server.jobs.finish(later)
    page.wait(f"[...document.querySelectorAll('#gallery li')].some(tile => tile.textContent.includes('later'))")


def test_what_others_did_before_a_job_of_the_page_is_not_missed(server, open_page, submit):
    page = open_page(server)
    page.wait("!document.querySelector('#empty').hidden")
    server.jobs.finish(server.jobs.accept({"prompt": "from elsewhere"}, "", None))
    submit(page, "of the page")
    page.wait(f"{TILES} === 1")
    assert page.text("#gallery") == "from elsewhere"


def test_more_jobs_than_one_answer_lists(server, open_page):
    for number in range(130):
        server.jobs.finish(server.jobs.accept({"prompt": f"job {number}", "width": 16, "height": 16}, "", None))
    page = open_page(server)
    page.wait(f"{TILES} === 130")
    assert page.text("#gallery li:first-child") == "job 129" and page.text("#gallery-count") == "130"


def test_many_jobs_take_few_connections(page, server, submit):
    for number in range(5):
        submit(page, f"job {number}")
    page.wait("document.querySelectorAll('#queue li').length === 5")
    followed = {path.split("/")[3] for _, path, _ in server.seen if "/events" in path}
    assert followed == set(list(server.jobs.jobs)[:2]), "those that are next"
    assert words(page, 5).startswith("4 jobs ahead")


def test_the_large_view_by_keyboard(server, open_page, look):
    for number in range(3):
        server.jobs.finish(server.jobs.accept({"prompt": f"picture {number}", "seed": 2**64 - 1 - number, "width": 640, "height": 256}, "", None))
    page = open_page(server)
    page.wait(f"{TILES} === 3")
    page.value("document.querySelector('#gallery li:nth-child(2) button').focus()")
    page.press("Enter")
    page.wait("document.querySelector('#viewer').open && document.querySelector('#stage img')?.naturalWidth === 640")
    assert page.text("#viewer-prompt") == "picture 1" and page.text("#viewer-place") == "2 of 3"
    settings = page.value("Object.fromEntries([...document.querySelectorAll('#viewer-settings div')].map(pair => [...pair.children].map(part => part.textContent)))")
    assert settings["Seed"] == str(2**64 - 2) and settings["Size"] == "640 × 256" and settings["Steps"] == "20"
    assert page.value("document.querySelector('#viewer-download').download") == f"picture-1-{2**64 - 2}.png"
    look(page)
    page.press("ArrowRight")
    page.wait("document.querySelector('#viewer-prompt').textContent === 'picture 0' && document.querySelector('#viewer-older').disabled")
    page.press("ArrowRight")
    page.press("ArrowLeft", times=2)
    page.wait("document.querySelector('#viewer-prompt').textContent === 'picture 2'")
    page.press("Escape")
    page.wait("!document.querySelector('#viewer').open")
    assert page.value("document.activeElement.textContent") == "picture 2", "the focus is on what was shown"


def test_settings_are_used_again(server, open_page):
    server.jobs.finish(server.jobs.accept({"prompt": "again", "seed": 2**63 + 1, "scheduler": "heun", "vae_tiling": True}, "", None))
    page = open_page(server)
    page.click("#gallery button")
    page.click("#viewer-use")
    page.wait("!document.querySelector('#viewer').open && document.activeElement.id === 'field-prompt'")
    values = page.value("Object.fromEntries([...document.querySelectorAll('#form [name]')].map(input => [input.name, input.value]))")
    assert values["prompt"] == "again" and values["seed"] == str(2**63 + 1) and values["scheduler"] == "heun"
    assert page.value("document.querySelector('#field-vae_tiling').checked")


def test_results_are_deleted(server, open_page, look):
    for number in range(2):
        server.jobs.finish(server.jobs.accept({"prompt": f"picture {number}", "num_images_per_prompt": 1 + number}, "", None))
    page = open_page(server)
    page.wait(f"{TILES} === 3")
    page.click("#gallery button")
    page.click("#viewer-delete")
    page.wait("document.querySelector('#confirm').open")
    assert page.text("#confirm-text") == "Delete the 2 pictures of this job?"
    page.click("#confirm [value=no]")
    assert len(server.jobs.jobs) == 2
    page.click("#viewer-delete")
    page.click("#confirm-yes")
    page.wait(f"{TILES} === 1 && document.querySelector('#viewer-prompt').textContent === 'picture 0'")
    assert page.value("document.querySelector('#viewer').open"), "the next one is shown"
    page.click("#viewer-delete")
    page.click("#confirm-yes")
    page.wait(f"{TILES} === 0 && !document.querySelector('#viewer').open && !document.querySelector('#empty').hidden")
    assert server.jobs.jobs == {}
    look(page)


@pytest.fixture(scope="session")
def video(pytestconfig, tmp_path_factory):
    program = pytestconfig.getoption("--program")
    if program is None:
        pytest.skip("no --program that generates a video")
    path = tmp_path_factory.mktemp("video") / "a.mp4"
    subprocess.run([program, "generate", "a red circle moves", "--model", "shapes-video", "--num-frames", "17", "--num-inference-steps", "2",
                    "--quiet", "-o", path], check=True, stdout=subprocess.DEVNULL)
    return path.read_bytes()


def test_videos_play(server, open_page, video, look):
    server.jobs.video = video
    server.jobs.finish(server.jobs.accept({"prompt": "a red circle moves", "width": 128, "height": 128}, "", None))
    page = open_page(server)
    page.wait("document.querySelector('#gallery video').videoWidth > 0")
    page.click("#gallery button")
    page.wait("document.querySelector('#stage video')?.duration > 0 && document.querySelector('#stage video').controls")
    page.value("document.querySelector('#stage video').play().then(() => 1)")
    page.wait("document.querySelector('#stage video').currentTime > 0")
    assert page.value("document.querySelector('#viewer-download').download").endswith(".mp4")
    look(page)
