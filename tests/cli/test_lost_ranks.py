"""Ranks that die, stand still, run out of memory or are asked to stop, while they denoise or decode."""
import os
import resource
import signal
import time

from harness import MODEL, test
from watched import alive, start_long_run

@test
def a_killed_rank_ends_the_run(box):
    for victim in (1, 0):
        run = start_long_run(box)
        os.kill(run.ranks[victim], signal.SIGKILL)
        code, out, lines = run.finish()
        assert code == 4 and out == "", (code, out, lines)
        assert len(lines) == 1 and f"[rank {victim}] killed by signal 9 (SIGKILL) at step " in lines[0], lines
        assert "(cfg)" in lines[0], lines  # the operation that it was in, or came out of
        assert box.files() == []


@test
def a_stopped_rank_ends_the_run(box):
    for victim in (1, 0):
        run = start_long_run(box, "--timeout", "2")
        os.kill(run.ranks[victim], signal.SIGSTOP)
        code, out, lines = run.finish()
        assert code == 4 and out == "", (code, out, lines)
        assert len(lines) == 1 and f"[rank {victim}] stands still" in lines[0] and " at step " in lines[0], lines
        assert "(cfg)" in lines[0], lines
        assert box.files() == []


@test
def a_rank_without_memory_ends_the_run(box):
    # Steps may do with the memory that they have; the decoder, which each replica loads, needs more.
    run = start_long_run(box, steps="100", method=("--data-parallel-degree", "2"))
    resource.prlimit(run.ranks[1], resource.RLIMIT_AS, (1 << 20, 1 << 20))
    code, out, lines = run.finish()
    assert code == 4 and out == "", (code, out, lines)
    assert len(lines) == 1 and "[rank 1] failed " in lines[0] and "not enough memory" in lines[0], lines
    assert box.files() == []


@test
def memory_that_no_rank_has(box):
    box.refuse(5, "not enough memory", "generate", "a cat", "--model", MODEL, "--dtype", "fp32", "--height", "16384",
               "--width", "16384", "--no-resolution-binning", "--num-images-per-prompt", "1024", "--num-inference-steps", "1",
               "--use-cfg-parallel", limits={resource.RLIMIT_AS: 32 << 30})


@test
def a_pause_is_no_failure(box):
    run = start_long_run(box, "--timeout", "30", steps="100")
    os.kill(run.ranks[1], signal.SIGSTOP)
    time.sleep(0.5)
    os.kill(run.ranks[1], signal.SIGCONT)
    code, out, lines = run.finish()
    assert code == 0 and len(out.split()) == 16, (code, out, lines)


@test
def a_rank_that_computes_long_is_alive(box):
    # Rank 1 waits for all pictures of rank 0, which alone decodes: longer than the timeout, in which it says nothing.
    for words in ([], ["--no-shared-memory"]):
        seconds, pictures = 0, 16
        while seconds < 2.5:  # as many pictures as this machine needs for that
            pictures *= 2
            outcome = box.run("generate", "a cat", "--use-cfg-parallel", "--no-vae-parallel", "--num-images-per-prompt",
                              str(pictures), "--height", "512", "--width", "512", "--num-inference-steps", "1", "--timeout", "2",
                              "--report", "run.json", "-o", "p.png", *words)
            assert outcome.code == 0 and len(outcome.out.split()) == pictures, outcome
            seconds = box.report()["seconds"]["decode"]


@test
def ctrl_c_ends_all_ranks(box):
    run = start_long_run(box)
    run.process.send_signal(signal.SIGINT)
    for rank in run.ranks:
        os.kill(rank, signal.SIGINT)  # a terminal sends it to all
    code, out, lines = run.finish()
    assert code == 130 and out == "", (code, out, lines)
    assert lines[-1] == "tessera: stopped; nothing was written" and len(lines) == 2, lines
    assert box.files() == []


@test
def ctrl_c_twice_and_termination_end_at_once(box):
    run = start_long_run(box, "--timeout", "60")
    os.kill(run.ranks[1], signal.SIGSTOP)  # or the first might do
    run.process.send_signal(signal.SIGINT)
    run.wait_for("tessera: ")
    run.process.send_signal(signal.SIGINT)
    code, _, lines = run.finish()
    assert code == 130, (code, lines)
    run = start_long_run(box)
    run.process.send_signal(signal.SIGTERM)
    code, _, lines = run.finish()
    assert code == 143, (code, lines)
    assert box.files() == []


@test
def nohup_outlives_the_terminal(box):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # what nohup does; children inherit it
    try:
        run = start_long_run(box, "--timeout", "30", steps="100")
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    for process in (run.process.pid, *run.ranks):
        os.kill(process, signal.SIGHUP)
    code, out, lines = run.finish()
    assert code == 0 and len(out.split()) == 16, (code, out, lines)
    run = start_long_run(box)
    run.process.send_signal(signal.SIGHUP)
    code, _, lines = run.finish()
    assert code == 129, (code, lines)


@test
def ranks_die_with_their_parent(box):
    run = start_long_run(box)
    run.process.kill()
    run.process.communicate()
    deadline = time.monotonic() + 100
    while any(alive(rank) for rank in run.ranks):
        assert time.monotonic() < deadline, "orphans"
        time.sleep(0.05)
    assert box.files() == []


def start_decoding(box, ranks, *words):
    """Two or three ranks that decode many pictures together; returns with one of them done."""
    return start_long_run(box, "--height", "256", "--width", "256", *words, steps="1", method=("--ring-degree", str(ranks)),
                          ranks=ranks, until="decode [", pictures="256")


@test
def a_rank_killed_amid_decoding_ends_the_run(box):
    for ranks, victim in ((2, 1), (2, 0), (3, 2)):
        run = start_decoding(box, ranks)
        os.kill(run.ranks[victim], signal.SIGKILL)
        code, out, lines = run.finish()
        assert code == 4 and out == "", (code, out, lines)
        assert len(lines) == 1 and f"[rank {victim}] killed by signal 9 (SIGKILL)" in lines[0], lines
        assert box.files() == []


@test
def a_rank_stopped_amid_decoding_ends_the_run(box):
    for ranks, victim in ((2, 0), (3, 1)):
        run = start_decoding(box, ranks, "--timeout", "2")
        os.kill(run.ranks[victim], signal.SIGSTOP)
        code, out, lines = run.finish()
        assert code == 4 and out == "", (code, out, lines)
        assert len(lines) == 1 and f"[rank {victim}] stands still" in lines[0], lines
        assert box.files() == []


@test
def ctrl_c_amid_decoding_ends_all_ranks(box):
    for ranks in (2, 3):
        run = start_decoding(box, ranks)
        run.process.send_signal(signal.SIGINT)
        code, out, lines = run.finish()
        assert code == 130 and out == "", (code, out, lines)
        assert lines[-1] == "tessera: stopped; nothing was written", lines
        assert box.files() == []
