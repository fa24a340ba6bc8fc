"""The form: fields from the server, what is sent, errors at their fields, settings from files."""
import base64
import json

from fake_jobs import png


def sent(server):
    return [json.loads(line) for line in server.bodies]


def test_fields_have_labels_defaults_limits_and_help(page):
    assert page.value("document.querySelector('#field-num_inference_steps').value") == "20"
    assert page.value("document.querySelector('#field-width').value") == "512"
    assert page.value("document.querySelector('#field-seed').placeholder") == "random"
    assert page.text("#field-num_images_per_prompt-limits") == "1–8"
    assert {("textbox", "Prompt"), ("spinbutton", "Steps"), ("combobox", "Sampler"), ("button", "Draw a seed")} <= set(page.accessible())
    assert page.value("document.querySelector('#field-prompt').getBoundingClientRect().top < document.querySelector('#field-seed').getBoundingClientRect().top")
    page.click("[aria-controls=field-guidance_scale-help]")
    assert page.text("#field-guidance_scale-help") == "Guidance scale: higher values follow the prompt more closely, 1 turns guidance off"
    assert page.value("document.querySelector('[aria-controls=field-guidance_scale-help]').ariaExpanded") == "true"
    page.click("[aria-controls=field-num_inference_steps-help]")
    assert page.value("[...document.querySelectorAll('#main-fields .help')].filter(help => !help.hidden).map(help => help.id)") == ["field-num_inference_steps-help"]
    page.click("#more summary")
    assert "eta" in page.text("#field-eta-help").lower() or "DDIM" in page.text("#field-eta-help")
    assert page.value("document.querySelector('#field-clean_caption').checked")
    assert page.value("[...document.querySelector('#field-scheduler').list.options].map(each => each.value).slice(0, 2)") == ["ddim", "dpm++"]


def test_a_job_has_what_the_form_shows_and_no_other_fields(page, server, submit):
    job = submit(page, "  a red circle ", negative_prompt="blurry", num_inference_steps="7", guidance_scale="3.5", seed="18446744073709551615")
    assert server.bodies == ['{"prompt": "a red circle", "negative_prompt": "blurry", "width": 512, "height": 512, '
                             '"num_inference_steps": 7, "guidance_scale": 3.5, "seed": 18446744073709551615, "num_images_per_prompt": 1}']
    assert job["request"]["seed"] == 2**64 - 1


def test_more_settings_are_sent_where_they_differ(page, server, submit):
    page.click("#more summary")
    page.click("#field-clean_caption")
    page.fill("#field-scheduler_option", "use_karras_sigmas=true\n\nsolver_order=3")
    page.fill("#field-eta", "0")
    assert page.text("#more summary") == "More settings (2 changed)"
    submit(page)
    body = sent(server)[0]
    assert body["clean_caption"] is False and body["scheduler_option"] == ["use_karras_sigmas=true", "solver_order=3"]
    assert "eta" not in body and "vae_tiling" not in body


def test_files_of_pictures_go_with_the_request(server, open_page, submit, tmp_path):
    server.fields = server.fields + [{"name": "image", "type": "texts", "group": "prompt", "default": None, "help": "Picture to which the images refer"}]
    page = open_page(server)
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_bytes(png(8, 8, len(name)))
    page.choose_file("#field-image", tmp_path / "a.png", tmp_path / "b.png")
    submit(page)
    urls = sent(server)[0]["image"]
    assert [base64.b64decode(url.removeprefix("data:image/png;base64,")) for url in urls] == [png(8, 8, 5)] * 2
    page.click("#reset")
    submit(page, "without")
    assert "image" not in sent(server)[1]


def test_a_video_has_a_size_by_name_or_in_pixels(server, open_page, submit):
    server.fields = server.fields + [
        {"name": "num_frames", "type": "integer", "group": "video", "default": 17, "minimum": 1, "maximum": 16384, "unit": "N", "help": "Frames"},
        {"name": "resolution", "type": "text", "group": "video", "default": None, "choices": ["240p", "480p"], "help": "Size by name"}]
    page = open_page(server)
    assert page.value("[...document.querySelectorAll('#field-format option')].map(each => each.textContent)") == ["mp4", "webm", "gif"]
    submit(page)
    page.click("#more summary")
    page.value("(select => { select.value = '480p'; select.dispatchEvent(new Event('input', {bubbles: true})); })(document.querySelector('#field-resolution'))")
    submit(page, "by name")
    pixels, named = sent(server)
    assert pixels["width"] == 512 and "resolution" not in pixels and pixels["num_frames"] == 17
    assert named["resolution"] == "480p" and "width" not in named and "height" not in named


def test_the_keyboard_alone_submits(page, server):
    page.press("Tab")
    assert page.value("document.activeElement.className") == "skip"
    page.press("Enter")
    page.wait("document.activeElement.id === 'field-prompt'")
    page.type("by hand")
    page.press("Enter", "Control")
    page.wait("document.querySelector('#queue li')")
    assert sent(server)[0]["prompt"] == "by hand"
    assert page.value("document.activeElement.id") == "field-prompt"


def test_arrow_keys_change_numbers_within_their_limits(page):
    page.value("document.querySelector('#field-width').focus()")
    page.press("ArrowUp")
    assert page.value("document.activeElement.value") == "528"
    page.fill("#field-guidance_scale", "0.2")
    page.press("ArrowDown")
    assert page.value("document.activeElement.value") == "0"


def test_shapes_and_swapping(page):
    page.click(".chips button:nth-child(4)")
    assert page.value("['width', 'height'].map(name => document.querySelector('#field-' + name).value)") == ["688", "384"]
    assert page.value("[...document.querySelectorAll('.chips [aria-pressed=true]')].map(chip => chip.textContent)") == ["16:9"]
    page.click(".swap")
    assert page.value("['width', 'height'].map(name => document.querySelector('#field-' + name).value)") == ["384", "688"]
    assert page.value("document.querySelector('.chips [aria-pressed=true]').textContent") == "9:16"


def test_the_dice_draws_a_seed(page):
    page.click(".attached")
    first = page.value("document.querySelector('#field-seed').value")
    assert first.isdigit()
    page.click(".attached")
    assert page.value("document.querySelector('#field-seed').value") != first


def test_wrong_values_are_told_at_their_fields_before_anything_is_sent(page, server):
    page.fill("#field-num_inference_steps", "0")
    page.fill("#field-seed", "12x")
    page.click("#submit")
    assert page.value("document.activeElement.id") == "field-num_inference_steps"
    assert page.text("#field-num_inference_steps-error") and page.text("#field-seed-error")
    assert page.value("document.querySelector('#field-seed').ariaInvalid") == "true"
    page.fill("#field-num_inference_steps", "5")
    assert page.value("document.querySelector('#field-num_inference_steps-error').hidden")
    assert server.bodies == []


def test_an_error_of_the_server_stands_at_its_field(page, server, look):
    page.fill("#field-height", "500")
    page.click("#submit")
    page.wait("document.activeElement.id === 'field-height'")
    assert page.text("#field-height-error") == "Expected a multiple of 16, got 500"
    look(page)
    server.refuse.append((400, "[eta] has no effect with euler", "eta", {}))
    page.fill("#field-height", "512")
    page.click("#submit")
    page.wait("document.activeElement.id === 'field-eta'")
    assert page.text("#field-eta-error") == "Has no effect with euler"
    assert page.value("document.querySelector('#more').open"), "the part with the field is opened"


def test_other_errors_stand_above_the_button(page, server, look):
    server.refuse.append((429, "The queue is full.", None, {"Retry_After": "90"}))
    page.click("#submit")
    page.wait("document.querySelector('#notice').textContent")
    assert page.text("#notice") == "The queue is full. Try again in 2 min."
    look(page)


def test_a_job_whose_answer_was_lost_is_sent_again_and_accepted_once(page, server, submit):
    server.lose_answers = 1
    submit(page)
    keys = [headers["Idempotency-Key"] for method, path, headers in server.seen if method == "POST"]
    assert len(keys) == 2 and keys[0] == keys[1] and len(server.jobs.jobs) == 1


def test_settings_come_back_from_a_picture(page, tmp_path):
    settings = {"model": "other", "prompt": ["one", "zwei, drei — „vier“"], "seed": 2**64 - 2, "width": 256, "height": 384, "num_inference_steps": 9,
                "scheduler": "euler", "clean_caption": False, "num_images_per_prompt": 2, "image_index": 3, "dtype": "bf16"}
    (tmp_path / "a.png").write_bytes(png(64, 64, 1, [("parameters", "one"), ("tessera", json.dumps(settings, ensure_ascii=False))]))
    page.choose_file("#choose-file", tmp_path / "a.png")
    page.wait("document.querySelector('#notice').textContent")
    assert page.text("#notice") == "8 settings taken from a.png. It was made with the model other."
    values = page.value("Object.fromEntries([...document.querySelectorAll('#form [name]')].map(input => [input.name, input.value]))")
    assert values["prompt"] == "zwei, drei — „vier“" and values["seed"] == str(2**64 - 2) and values["scheduler"] == "euler"
    assert (values["width"], values["height"], values["num_inference_steps"], values["guidance_scale"]) == ("256", "384", "9", "4.5")
    assert not page.value("document.querySelector('#field-clean_caption').checked")


def test_a_picture_may_be_dropped_anywhere(page, tmp_path):
    (tmp_path / "a.png").write_bytes(png(64, 64, 1, [("tessera", '{"prompt": ["dropped"], "seed": 5}')]))
    page.drop_file(tmp_path / "a.png")
    page.wait("document.querySelector('#field-prompt').value === 'dropped'")
    assert page.value("document.querySelector('#field-seed').value") == "5"
    assert page.value("document.querySelector('#drop').hidden")


def test_files_without_settings_are_refused_by_name(page, tmp_path):
    for name, data, says in (("plain.png", png(8, 8, 1), "has no settings"), ("text.png", b"hello, this is text", "not a PNG"),
                             ("cut.png", png(8, 8, 1)[:40], "has no settings"), ("bad.png", png(8, 8, 1, [("tessera", "{")]), "cannot be read")):
        (tmp_path / name).write_bytes(data)
        page.choose_file("#choose-file", tmp_path / name)
        page.wait(f"document.querySelector('#notice').textContent.includes({json.dumps(says)})")
    assert page.value("document.querySelector('#notice').classList.contains('error')")


def test_what_was_written_is_there_after_a_reload(page, server):
    page.fill("#field-prompt", "half a thought")
    page.fill("#field-seed", "77")
    page.go(server.url)
    page.wait("document.querySelector('#field-prompt')?.value === 'half a thought'")
    assert page.value("document.querySelector('#field-seed').value") == "77"
    page.click("#reset")
    assert page.value("document.querySelector('#field-prompt').value") == ""
