"""Tests of requests that stand in files: prompts, one per line."""
import json
import os
import threading

from files import assert_near, read_latents, read_png
from harness import MODEL, SMALL, test
from test_launchers import finish_ranks, start_ranks, torchrun_variables
from test_ranks import NEAR

PROMPTS = ["a caf\u00e9", "  a dog, \"quoted\" --seed", "\u732b"]


@test
def prompts_from_a_file(box):
    for text in ("\n".join(PROMPTS), "\ufeff" + "\r\n\r\n".join(PROMPTS) + "\r\n", "\n \t\n" + "\n\n".join(PROMPTS) + "\n\n"):
        (box.folder / "prompts.txt").write_bytes(text.encode())
        outcome = box.generate("--prompt-file", "prompts.txt", "--report", "run.json", "--seed", "5", *SMALL)
        assert outcome.out.split() == ["out-0.png", "out-1.png", "out-2.png"], outcome
        assert box.report()["settings"]["prompt"] == PROMPTS, text
        box.generate(*(f"--prompt={prompt}" for prompt in PROMPTS), "-o", "words.png", "--seed", "5", *SMALL)
        for i in range(3):
            assert read_png(box.folder / f"out-{i}.png")[2] == read_png(box.folder / f"words-{i}.png")[2]


@test
def prompts_from_standard_input_reach_all_ranks(box):
    words = ["--seed", "5", "--report", "run.json", "--guidance-scale", "3", *SMALL]
    expected = box.latents(*(f"--prompt={prompt}" for prompt in PROMPTS), *words)
    for degrees in ([], ["--use-cfg-parallel"], ["--data-parallel-degree", "3"]):
        latents = box.latents("--prompt-file", "-", *degrees, *words, stdin="\n".join(PROMPTS).encode())
        assert box.report()["settings"]["prompt"] == PROMPTS
        assert_near(latents, expected, NEAR)


@test
def ranks_of_another_launcher_take_the_prompts_that_rank_0_reads(box):
    (box.folder / "prompts.txt").write_text("a cat\n")
    words = ["generate", "--prompt-file", "prompts.txt", "--model", MODEL, "--dtype", "fp32", "--use-cfg-parallel", "--seed", "5", *SMALL,
             "--output-type", "latent", "-o", "out.safetensors"]
    elsewhere = ["generate", "--prompt-file", "not-on-this-host.txt"]
    (code, _, err), second = finish_ranks(start_ranks(box, torchrun_variables, [words, elsewhere]))
    assert code == 0 and second == (0, "", ""), (err, second)
    assert_near(read_latents(box.folder / "out.safetensors"), box.latents("a cat", "--seed", "5", *SMALL), NEAR)


@test
def a_pipe_serves_as_a_file_of_prompts(box):
    os.mkfifo(box.folder / "pipe")
    writer = threading.Thread(target=lambda: (box.folder / "pipe").write_text("a cat\na dog\n"))
    writer.start()
    outcome = box.generate("--prompt-file", "pipe", *SMALL)
    writer.join()
    assert json.loads(read_png(box.folder / "out-1.png")[3]["tessera"])["prompt"] == ["a cat", "a dog"], outcome


@test
def unusable_files_of_prompts_are_refused(box):
    words = ["generate", "--model", MODEL, *SMALL, "--prompt-file"]
    (box.folder / "empty.txt").write_text("\n  \n\r\n")
    (box.folder / "latin1.txt").write_bytes("a cat\na caf\u00e9\n".encode("latin-1"))
    for flags in ([], ["--use-cfg-parallel"]):
        box.refuse(3, "[empty.txt] holds no prompt; write one per line", *words, "empty.txt", *flags)
        box.refuse(3, "[latin1.txt] line 2 is not valid UTF-8 (byte 5)", *words, "latin1.txt", *flags)
        box.refuse(3, "[none.txt] no such file", *words, "none.txt", *flags)
        box.refuse(3, "[standard input] holds no prompt", *words, "-", *flags, stdin=b"")
        box.refuse(2, "[--prompt-file] there are prompts on the command line too", *words, "empty.txt", "a cat", *flags)
