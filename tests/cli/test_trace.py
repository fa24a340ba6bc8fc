"""Tests `tessera trace`."""
import json
import os
import re
import shutil

from files import DEGREES, Page, says, sums, table_rows
from harness import MODEL, ROOT, SMALL


def test_trace_of_a_model(box):
    outcome = box.run("trace", "a cat", "--model", MODEL, *SMALL, *DEGREES, "-o", "t.json")
    assert outcome.code == 0 and outcome.out == "t.json\n", outcome
    trace = json.loads((box.folder / "t.json").read_text())
    assert trace["world_size"] == 2 and [rank["rank"] for rank in trace["ranks"]] == [0, 1], trace["world_size"]
    assert all(f"{rank}  denoise" in outcome.err for rank in (0, 1)), outcome.err
    # A run of as many steps sends as many bytes in the denoiser.
    box.latents("a cat", "--model", MODEL, *SMALL, *DEGREES, "--report", "run.json")
    report = box.report()
    steps = len(report["step_seconds"])
    for rank in (0, 1):
        real = sum(row["bytes"] for row in report["ranks"][rank]["communication"] if row["axis"] == "ulysses")
        traced = sum(event["bytes"] for event in trace["ranks"][rank]["events"] if event.get("axis") == "ulysses")
        assert real == traced * steps / trace["traced_steps"], (real, traced)
    one = box.run("trace", "a cat", "--model", MODEL, *SMALL, *DEGREES, "--rank", "1", "-o", "one.json")
    assert one.code == 0 and json.loads((box.folder / "one.json").read_text())["ranks"] == trace["ranks"][1:], one


def test_a_report_has_the_messages_of_a_trace(box):
    """Of each axis and operation, where a trace has all steps of the run."""
    words = ["a cat", "--model", MODEL, "--dtype", "fp32", "--height", "64", "--width", "48", "--no-resolution-binning",
             "--num-inference-steps", "3", "--ulysses-degree", "2", "--pipefusion-parallel-degree", "2"]
    assert box.run("trace", *words, "-o", "t.json").code == 0
    assert box.run("generate", *words, "--report", "run.json").code == 0
    trace, report = json.loads((box.folder / "t.json").read_text()), box.report()
    assert trace["traced_steps"] == trace["steps"] == 3, trace["traced_steps"]
    for traced, reported in zip(trace["ranks"], report["ranks"], strict=True):
        expected = {}
        for event in traced["events"]:
            if "collective" in event:
                count, sent = expected.get((event["axis"], event["collective"]), (0, 0))
                expected[event["axis"], event["collective"]] = count + 1, sent + event["bytes"]
        found = {(row["axis"], row["operation"]): (row["count"], row["bytes"]) for row in reported["communication"] if row["axis"] != "world"}
        assert found == expected, (found, expected)
        assert all(0 <= row["waited_seconds"] <= row["seconds"] for row in reported["communication"]), reported
        assert reported["rank"] == traced["rank"], (reported["rank"], traced["rank"])


def test_trace_of_latents_decodes_nothing(box):
    outcome = box.run("trace", "a cat", "--model", MODEL, *SMALL, *DEGREES, "--output-type", "latent", "-o", "t.json")
    assert outcome.code == 0, outcome
    phases = {event["phase"] for rank in json.loads((box.folder / "t.json").read_text())["ranks"] for event in rank["events"]}
    assert phases == {"encode", "denoise"}, phases


def test_steps_are_evaluations_of_the_denoiser(box):
    # Heun's method evaluates twice in each step but the last (arXiv:2206.00364).
    for scheduler, steps in (("heun", 19), ("euler", 10)):
        words = ["--model", ROOT / "tests" / "golden" / "tiny-sd", "--height", "64", "--width", "64", "--num-inference-steps", "10"]
        assert box.run("trace", "a cat", *words, "--scheduler", scheduler, "-o", "t.json").code == 0
        trace = json.loads((box.folder / "t.json").read_text())
        assert (trace["steps"], trace["traced_steps"]) == (steps, 1), (scheduler, trace["steps"], trace["traced_steps"])


def test_trace_of_configs_alone(box):
    words = [*SMALL, "--dtype", "fp32"]
    folder = box.folder / "configs"
    copy_configs(MODEL, folder)
    whole = box.run("trace", "--model", MODEL, *words, "-o", "whole.json")
    bare = box.run("trace", "--model", folder, *words, "-o", "bare.json")
    assert whole.code == 0 and bare.code == 0, (whole, bare)
    traces = [json.loads((box.folder / name).read_text())["ranks"][0] for name in ("whole.json", "bare.json")]
    assert sums(traces[0], "decode") == sums(traces[1], "decode") and sums(traces[1], "denoise")[0] > 0, traces
    assert "without a tokenizer: prompts of 300 tokens, whose encoding is left out" in bare.err, bare.err
    assert "without a tokenizer" not in whole.err and whole.err.startswith("PixArtSigmaPipeline, fp32, 1 rank\n"), whole.err
    # With tokenizers, prompts are encoded as with weights.
    shutil.copytree(MODEL / "tokenizer", folder / "tokenizer")
    outcome = box.run("trace", "a cat", "--model", folder, *words, "-o", "encoded.json")
    assert outcome.code == 0 and box.run("trace", "a cat", "--model", MODEL, *words, "-o", "whole.json").code == 0, outcome
    encoded, whole = (json.loads((box.folder / name).read_text())["ranks"][0] for name in ("encoded.json", "whole.json"))
    assert encoded["events"] == whole["events"] and sums(encoded, "encode")[0] > 0, sums(encoded, "encode")
    shutil.rmtree(folder / "tokenizer")
    # A trace does not depend on the seed, which is random if none is given.
    first = (box.folder / "bare.json").read_bytes()
    assert box.run("trace", "--model", folder, *words, "-o", "bare.json").code == 0
    assert (box.folder / "bare.json").read_bytes() == first


def copy_configs(model, folder):
    """Copies the JSON files of a model, without tokenizers: no prompt's length is known then."""
    for file in (file for file in model.rglob("*.json") if file.parent.name not in ("tokenizer", "tokenizer_2", "golden")):
        place = folder / file.relative_to(model)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, place)


def trace_ranks(box, model, *words):
    outcome = box.run("trace", "--model", model, *words, "--no-cache", "-o", "ranks.json")
    assert outcome.code == 0 and outcome.out == "ranks.json\n", outcome
    path = box.folder / "ranks.json"
    trace = json.loads(path.read_text())
    path.unlink()
    return outcome.err, trace


def test_trace_of_a_denoiser_alone(box):
    """Its steps are those of the whole model, where as many pixels make a latent as in published ones."""
    for model, part, title, pixels, words in (("tiny-pixart", "transformer", "PixArt-Sigma", (8, 8), ["--no-resolution-binning"]),
                                              ("tiny-sd", "unet", "Stable Diffusion", (4, 8), []), ("tiny-sdxl", "unet", "Stable Diffusion XL", (8, 8), []),
                                              ("tiny-open-sora", "transformer", "Open-Sora 1.2", (8, 8), ["--num-frames", "34"]),
                                              ("tiny-open-sora-1.1", "transformer", "Open-Sora 1.1", (8, 8), ["--num-frames", "4"]),
                                              ("tiny-z-image", "transformer", "Z-Image", (4, 8), ["--cfg-normalization", "1"]),
                                              ("tiny-flux2-klein", "transformer", "FLUX.2 klein", (16, 16), [])):
        folder = box.folder / model
        copy_configs(ROOT / "tests" / "golden" / model, folder)
        words = [*words, "--tensor-parallel-degree", "2", "--dtype", "fp32"]

        def of_size(side):
            return [*words, "--height", str(8 * side), "--width", str(6 * side)]
        whole = trace_ranks(box, folder, *of_size(pixels[0]), "--output-type", "latent")[1]
        # FLUX.2's latents get the form that they have in diffusers from the VAE's statistics, which a denoiser alone lacks.
        events = whole["ranks"][0]["events"]
        last = max(number for number, event in enumerate(events) if "wait" in event)  # that all ranks are through with the steps
        assert len(events) - 1 - last == (3 if title == "FLUX.2 klein" else 0), events[last:]
        del events[last + 1:]
        shutil.copy(folder / part / "config.json", box.folder)
        for place in (folder / part, folder / part / "config.json", "config.json"):
            out, alone = trace_ranks(box, place, *of_size(pixels[1]))
            assert alone["ranks"] == whole["ranks"] and alone["model"] == whole["model"], (place, out)
            assert f"only the denoiser, with the defaults of {title}: prompts of " in out, out
            assert alone["settings"]["output_type"] == "latent", alone["settings"]


def test_a_misspelled_key_is_named(box):
    folder = box.folder / "typo"
    folder.mkdir()
    config = json.loads((MODEL / "transformer" / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_leyers": 7}))
    for _ in range(2):  # once made, once kept
        outcome = box.run("trace", "--model", "typo", *SMALL, *DEGREES, "-q", "-o", "t.json")
        assert outcome.code == 0, outcome
        assert outcome.err == "warning: [typo/config.json] options without effect: num_leyers\n", outcome


def test_views_of_a_denoiser_alone(box):
    assert box.run("trace", "--model", MODEL / "transformer", *SMALL, *DEGREES, "-o", "t.json").code == 0
    for view in ("ops", "comm", "flops", "memory"):
        rows = json.loads(box.run("analyze", view, "t.json", "--json").out)["rows"]
        assert rows and {row["phase"] for row in rows if "phase" in row} <= {"denoise"}, (view, rows)
    page = Page(box.run("analyze", "report", "t.json", "-o", "-").out)
    assert page.plots > 0, page.headings


def test_trace_refuses_what_is_no_denoiser(box):
    box.refuse(3, "text_encoder/config.json] is of T5EncoderModel, but a denoiser is of PixArtTransformer2DModel, ",
               "trace", "--model", MODEL / "text_encoder")
    nameless = box.folder / "nameless" / "config.json"
    nameless.parent.mkdir()
    nameless.write_text("{}")
    box.refuse(3, "nameless/config.json] is of no class, but a denoiser is of", "trace", "--model", "nameless/config.json")
    nameless.write_text("{")
    box.refuse(3, "nameless/config.json", "trace", "--model", "nameless")
    box.refuse(3, "holds no model_index.json; did you mean", "generate", "a cat", "--model", MODEL / "transformer")


def test_a_trace_is_read_again(box):
    folder = box.folder / "configs"
    copy_configs(MODEL, folder)
    words = ["--model", folder, *SMALL, *DEGREES]
    kept = box.cache / "tessera" / "traces"

    def traced(*more, files, **options):
        """Returns the ranks of a trace after which so many are kept."""
        outcome = box.run("trace", *words, *more, "-o", "t.json", **options)
        assert outcome.code == 0 and outcome.out == "t.json\n", outcome
        assert len(list(kept.glob("*"))) == files, list(kept.glob("*"))
        return json.loads((box.folder / "t.json").read_text())["ranks"], outcome.err

    first = traced("--no-cache", files=0)
    assert traced(files=1) == first
    file, = kept.glob("*")
    made = file.stat().st_ino
    os.utime(file, (1000, 1000))
    assert traced("--seed", "7", files=1) == first and file.stat().st_ino == made
    assert file.stat().st_mtime > 1000  # what is used stays longest
    assert json.loads((box.folder / "t.json").read_text())["settings"]["seed"] == 7
    # What is kept is what is read: a kept trace of another model's numbers shows.
    hasher = 0xcbf29ce484222325
    rest = file.read_bytes().split(b"\n", 1)[1].replace(b'"flops":', b'"flops":1')
    for byte in rest:
        hasher = (hasher ^ byte) * 0x100000001b3 & (1 << 64) - 1
    whole = file.read_bytes()
    file.write_bytes(b"%016x\n" % hasher + rest)
    assert sums(traced(files=1)[0][0], "denoise")[0] > 2 * sums(first[0][0], "denoise")[0]
    assert traced("--no-cache", files=1) == first
    # Damaged ones are made anew: cut, of one byte changed, empty.
    for damaged in (whole[:len(whole) // 2], whole.replace(b'"flops":', b'"flops":1', 1), b""):
        file.write_bytes(damaged)
        assert traced(files=1) == first and file.read_bytes() != damaged
    # Other inputs are other traces.
    traced("--height", "48", files=2)
    traced("--rank", "1", files=3)
    config = folder / "transformer" / "config.json"
    numbers = json.loads(config.read_text())
    config.write_text(json.dumps({**numbers, "num_layers": numbers["num_layers"] + 1}))
    assert sums(traced(files=4)[0][0], "denoise")[0] > sums(first[0][0], "denoise")[0]


OF_OTHER_OPTIONS = {  # all of them give different traces
    "tiny-pixart": [
        [], ["--graph"], ["--dtype", "bf16"], ["--height", "48"], ["--width", "32"], ["--num-images-per-prompt", "2"], ["--prompt", "a dog and a cat"],
        ["--negative-prompt", "a longer one"], ["--max-sequence-length", "2"], ["--guidance-scale", "1"], ["--output-type", "latent"],
        ["--vae-block-size", "1"], ["--height", "512", "--width", "512"], ["--height", "512", "--width", "512", "--vae-tiling"],
        ["--use-cfg-parallel"], ["--data-parallel-degree", "2", "--num-images-per-prompt", "2"], ["--ring-degree", "2"],
        ["--ulysses-degree", "2"], ["--tensor-parallel-degree", "2"], ["--tensor-parallel-degree", "2", "--no-text-encoder-parallel"],
        ["--tensor-parallel-degree", "2", "--no-vae-parallel"], ["--pipefusion-parallel-degree", "2"],
        ["--pipefusion-parallel-degree", "2", "--num-pipeline-patch", "1"], ["--pipefusion-parallel-degree", "2", "--warmup-steps", "0"]],
    "tiny-sdxl": [
        [], ["--clip-skip", "1"],
        ["--displaced-patch-degree", "2", "--height", "128", "--warmup-steps", "0"],
        ["--displaced-patch-degree", "2", "--height", "128", "--warmup-steps", "0", "--displaced-mode", "sync_gn"]],
    "tiny-open-sora": [
        [], ["--num-frames", "34"], ["--num-frames", "34", "--ulysses-degree", "2"],
        ["--num-frames", "34", "--ulysses-degree", "2", "--no-dynamic-sequence-parallel"],
        ["--num-frames", "34", "--pipefusion-parallel-degree", "2", "--pipeline-patch-axis", "t"],
        ["--num-frames", "34", "--pipefusion-parallel-degree", "2", "--pipeline-patch-axis", "h"]]}


def test_a_trace_that_is_read_again_has_these_options(box):
    """In one cache, each trace equals the one that is made without it."""
    made = {}
    for model, variants in OF_OTHER_OPTIONS.items():
        base = ["--prompt", "a cat", "--model", ROOT / "tests" / "golden" / model, "--dtype", "fp32", "--height", "32", "--width", "48",
                "--num-inference-steps", "2", *(["--no-resolution-binning"] if model == "tiny-pixart" else [])]
        for more in variants:
            words = [word for word in base if "--prompt" not in more or word not in ("--prompt", "a cat")] + more
            for options in (["--no-cache"], [], []):
                outcome = box.run("trace", *words, *options, "-o", "t.json")
                assert outcome.code == 0 and outcome.out == "t.json\n", outcome
                trace = (box.folder / "t.json").read_bytes()
                ranks = json.loads(trace)["ranks"]
                if options:
                    expected = trace, outcome.err
                    assert made.setdefault(json.dumps(ranks), (model, more)) == (model, more), (more, "changes nothing")
                assert (trace, outcome.err) == expected, (model, more)


def test_a_trace_with_its_graph(box):
    """Is written where it is asked for, beside the same events, and has the same tables."""
    words = ["trace", "--model", MODEL, "--prompt", "a cat", *SMALL, "--tensor-parallel-degree", "2", "--no-cache", "-q"]
    traces = []
    for options, name in (([], "plain.json"), (["--graph"], "graph.json")):
        outcome = box.run(*words, *options, "-o", name)
        assert outcome.code == 0 and outcome.err == "", outcome
        traces.append(json.loads((box.folder / name).read_text()))
    plain, graph = traces
    assert (plain.pop("tessera_trace"), graph.pop("tessera_trace")) == (1, 2)
    graphs = graph.pop("graphs")
    assert len(graphs) == 2 and [rank.pop("graph") for rank in graph["ranks"]] == [0, 1]
    nodes = [event.pop("node") for rank in graph["ranks"] for event in rank["events"] if "node" in event]
    assert len(nodes) > 100 and graph == plain
    attention = [event["role"] for event in plain["ranks"][0]["events"] if event.get("operation") == "attention"]
    assert "transformer_blocks.0.attn1.attention" in attention, attention
    for view in ("ops", "comm", "sizes", "memory"):
        tables = [box.run("analyze", view, name, "--json").out for name in ("plain.json", "graph.json")]
        assert tables[0] == tables[1] != "", view
    assert box.run("analyze", "flops", "graph.json").code == 0
    text = (box.folder / "graph.json").read_text()
    (box.folder / "damaged.json").write_text(text.replace('"reads":[0', '"reads":[99999', 1))
    box.refuse(3, "damaged.json: graphs[0]", "analyze", "ops", "damaged.json")
    box.refuse(2, "--graph", "trace", "--model", MODEL, "--graph", "--stablehlo", "p.mlir")


def test_a_cache_that_cannot_be_used_is_no_error(box):
    words = ["trace", "--model", MODEL, *SMALL, "--quiet", "-o", "t.json"]
    (box.folder / "file").write_text("")
    for variables in ({"XDG_CACHE_HOME": os.fspath(box.folder / "file")}, {"XDG_CACHE_HOME": None, "HOME": None},
                      {"XDG_CACHE_HOME": "relative", "HOME": "relative"}):
        outcome = box.run(*words, env=variables)
        assert outcome.code == 0 and outcome.err == "", outcome
    assert box.files() == ["file", "t.json"], box.files()
    home = box.folder / "home"
    assert box.run(*words, env={"XDG_CACHE_HOME": None, "HOME": os.fspath(home)}).code == 0
    assert len(list((home / ".cache" / "tessera" / "traces").glob("*.trace"))) == 1


def test_old_traces_leave_the_cache(box):
    kept = box.cache / "tessera" / "traces"
    kept.mkdir(parents=True)
    sizes = {"oldest": 200 << 20, "older": 50 << 20, "newer": 50 << 20}
    for age, (name, size) in enumerate(sizes.items()):
        with open(kept / name, "wb") as file:
            file.truncate(size)  # takes no room
        os.utime(kept / name, (1000 + age, 1000 + age))
    assert box.run("trace", "--model", MODEL, *SMALL, "-o", "t.json").code == 0
    left = {path.name for path in kept.glob("*")}
    assert left >= {"older", "newer"} and "oldest" not in left and len(left) == 3, left


def test_trace_refuses(box):
    box.refuse(2, "[--rank] must be 'all' or a rank from 0 to 1, got '2'", "trace", "--model", MODEL, *SMALL, *DEGREES,
               "--rank", "2")
    box.refuse(2, "[--rank] must be 'all' or 0, got '-1'", "trace", "--model", MODEL, *SMALL, "--rank", "-1")
    box.refuse(2, "[--output]", "trace", "--model", MODEL, *SMALL, "-o", "no/such/folder/t.json")
    box.refuse(2, "[--json] prints the summary on standard output, where the trace goes", "trace", "--model", MODEL, *SMALL, "-o", "-", "--json")
    box.refuse(2, "unknown option", "trace", "--model", MODEL, "--simulate-ranks")
    box.refuse(2, "unknown option", "trace", "--model", MODEL, "--reprot", "x")
    box.refuse(3, "no-such-model", "trace", "--model", "no-such-model")
    assert box.files() == []


def cells_of(line):
    """Returns the cells of a line of a table, between which two blanks stand."""
    return re.split(r" {2,}", line.strip())


def test_a_trace_prints_what_it_writes(box):
    words = ["--model", MODEL, "--dtype", "fp32", "--height", "64", "--width", "48", "--no-resolution-binning"]
    for degrees in ([], ["--ulysses-degree", "2", "--pipefusion-parallel-degree", "2"]):
        outcome = box.run("trace", "a cat", *words, *degrees, "-o", "t.json")
        assert outcome.code == 0, outcome
        trace = json.loads((box.folder / "t.json").read_text())
        title, head, *lines, steps = outcome.err.splitlines()
        assert title == f"PixArtSigmaPipeline, fp32, {'4 ranks' if degrees else '1 rank'}" and outcome.out == "t.json\n", outcome
        assert cells_of(head) == ["rank", "phase", "operations", "FLOP collectives", "sent", "weights", "peak"], head
        traced = trace["traced_steps"]
        assert steps == f"denoise: of 20 steps, the first {f'{traced} are' if degrees else 'is'} traced" and trace["steps"] == 20, steps
        assert (traced > 1) == bool(degrees), traced
        rows = [(rank, number, phase) for rank in trace["ranks"] for number, phase in enumerate(("encode", "denoise", "decode"))]
        assert len(lines) == len(rows) == 3 * trace["world_size"], outcome.err
        for line, (rank, number, phase) in zip(lines, rows):
            events = [event for event in rank["events"] if event["phase"] == phase]
            collectives = [event for event in events if "collective" in event]
            weights = rank["weights_bytes"][number]
            name, what, *cells = cells_of(line)
            assert (name, what) == (str(rank["rank"]), phase), line
            exact = [sum("operation" in event for event in events), sum(event.get("flops", 0) for event in events), len(collectives),
                     sum(event["bytes"] for event in collectives), weights, weights + max(event["peak"] for event in events)]
            assert len(cells) == len(exact) and all(map(says, cells, exact)), (line, exact)


def test_views_print_what_json_has(box):
    words = ["--model", MODEL, "--dtype", "fp32", "--height", "64", "--width", "48", "--no-resolution-binning", "--ulysses-degree", "2",
             "--pipefusion-parallel-degree", "2"]
    assert box.run("trace", "a cat", *words, "-o", "t.json").code == 0
    giga = {"ops": {"flops"}, "flops": {"products", "convolutions", "elementwise"}}  # columns in GFLOP
    for view in ("ops", "comm", "flops", "memory"):
        for rank in ("0", "3"):
            *_, table = box.run("analyze", view, "t.json", "--rank", rank).out.split("\n\n")  # after a line of what its sums are
            lines = table_rows(table)
            rows = json.loads(box.run("analyze", view, "t.json", "--rank", rank, "--json").out)["rows"]
            assert len(lines) >= len(rows) > 0, (view, lines)
            for line, row in zip(lines, rows):
                left = line
                for key, value in row.items():
                    if isinstance(value, str):
                        left = left.removeprefix("-> ")  # between inputs and output
                        assert left.startswith(value), (view, line, key, value)
                        left = left[len(value):].lstrip()
                        continue
                    cell = re.match(r"-(?= |$)|[\d.]+(?: [KMGT](?:iB)?)?(?= |$)", left)[0]
                    left = left[len(cell):].lstrip()
                    exact = value / 1e9 if value is not None and key.removeprefix("step_") in giga.get(view, ()) else value
                    assert cell == "-" if value is None else says(cell, exact), (view, line, key, cell, value)
                assert left == "", (view, line, left)


def test_views_of_a_trace(box):
    words = ["--model", MODEL, *SMALL, *DEGREES]
    assert box.run("trace", "a cat", *words, "-o", "t.json").code == 0
    trace = json.loads((box.folder / "t.json").read_text())
    steps, trace = trace["steps"], trace["ranks"]

    def view(name, *words):
        return json.loads(box.run("analyze", name, *words, "--json").out)

    def of_run(events, key):  # the one traced step stands for all
        return sum(event[key] * (steps if event.get("step") == 0 else 1) for event in events)

    for rank in (0, 1):
        table = view("comm", "t.json", "--rank", str(rank))
        events = [event for event in trace[rank]["events"] if "collective" in event]
        assert (table["steps"], table["traced_steps"], table["rank"]) == (steps, 1, rank), table
        assert sum(row["sent"] for row in table["rows"]) == table["sum"]["sent"] == of_run(events, "bytes"), table
        assert table["sum"]["step_sent"] == sum(event["bytes"] for event in events if event.get("step") == 0), table
        events = [event for event in trace[rank]["events"] if "operation" in event]
        table = view("ops", "t.json", "--rank", str(rank))
        assert sum(row["count"] for row in table["rows"]) == sum(steps if event.get("step") == 0 else 1 for event in events), table
        assert sum(row["flops"] for row in table["rows"]) == table["sum"]["flops"] == of_run(events, "flops"), table
        flops = view("flops", "t.json", "--rank", str(rank))["rows"]
        assert sum(row["products"] + row["elementwise"] for row in flops) == of_run(events, "flops"), flops
        for row in view("memory", "t.json", "--rank", str(rank))["rows"]:
            assert row["tensors"] == max(event["peak"] for event in trace[rank]["events"] if event["phase"] == row["phase"]), row
    lines = box.run("analyze", "comm", "t.json", "--csv").out.splitlines()
    assert lines[0].split(",")[:3] == ["phase", "axis", "collective"] and any("ulysses" in line for line in lines), lines
    for row in view("comm", "t.json")["rows"]:
        assert (row["bruck"] is None) == (row["collective"] != "all_to_all"), row
    text = box.run("analyze", "comm", "t.json").out
    assert text.startswith("Rank 0 of 2: messages and bytes of a steady step, and of the run of ") and "1 is traced" in text, text
    assert "ulysses" in text and "KiB" in text and "Bruck" in text and text.splitlines()[-1].startswith("all "), text
    # The last layers of attention are no pair of Open-Sora's.
    assert view("sizes", "t.json")["rows"] == []
    assert box.run("analyze", "sizes", "t.json").out.startswith("Rank 0 of t.json has no pair of blocks of Open-Sora")
    assert box.run("trace", "a cat", "--model", MODEL, *SMALL, "-o", "one.json").code == 0
    assert box.run("analyze", "comm", "one.json").out == "Rank 0 of one.json sends nothing\n"
    assert box.run("analyze", "comm", "one.json", "--csv").out.splitlines() == lines[:1]


def test_a_report_of_traces(box):
    words = ["--model", MODEL, *SMALL]
    for name, degrees in (("u.json", DEGREES), ("one & <two>.json", ["--tensor-parallel-degree", "2"])):
        assert box.run("trace", "a cat", *words, *degrees, "-o", name).code == 0
    outcome = box.run("analyze", "report", "u.json", "one & <two>.json", "--machine", "h100", "-o", "r.html")
    assert outcome.code == 0 and outcome.out == "r.html\n" and outcome.err == "", outcome
    page = Page((box.folder / "r.html").read_text())
    assert page.loads == [] and page.plots == 11, (page.loads, page.plots)
    assert "one & <two>.json: PixArtSigmaPipeline, 2 ranks" in page.headings and "Roofline of h100" in page.headings, page.headings
    bars = page.texts["Bytes that the busiest rank sends in a steady step"]
    assert bars[::2] == ["u.json", "one & <two>.json"], bars
    for name, bar in zip(bars[::2], bars[1::2]):
        sent = [json.loads(box.run("analyze", "comm", name, "--rank", rank, "--json").out)["sum"]["step_sent"] for rank in ("0", "1")]
        assert says(bar, max(sent)), (name, bar, sent)
    slow = box.run("analyze", "report", "u.json", "--machine", "tx8", "--link-gb-per-s", "1", "-o", "slow.html")
    text = (box.folder / "slow.html").read_text()
    assert slow.code == 0 and "says no bandwidth" not in text, slow
    assert ">1000</text>" in text and "1e+03" not in text, "the roofline's intensities"
    intensities = re.findall(r"<circle [^>]*><title>[^<]*: ([^<,]*), [^<]*FLOP/s</title>", text)
    assert intensities and all(re.fullmatch(r"\d{3,}|(?=[\d.]{1,6}$)\d{1,2}(\.\d+)?", x) for x in intensities), intensities
    # In each lane, what a rank does without a gap is one span, which ends where the next begins.
    spans = re.findall(r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)"[^>]*><title>(computes|waits)</title>', text)
    assert {lane for _, lane, _, _ in spans} == {"2.0", "24.0"}, spans
    for (x, lane, width, kind), (x_next, lane_next, _, kind_next) in zip(spans, spans[1:]):
        assert lane != lane_next or (kind != kind_next and abs(float(x) + float(width) - float(x_next)) < 0.02), (x, lane, spans)
    # The timeline ends with the denoiser, in the unit that fits.
    for speed, unit in (("1", "us"), ("0.001", "ms"), ("0.000001", "s")):
        machine = ["--machine", "tx8", "--link-gb-per-s", speed]
        parts = json.loads(box.run("analyze", "hardware", "u.json", *machine, "--json").out)["parts"]
        assert box.run("analyze", "report", "u.json", *machine, "-o", "timed.html").code == 0
        end = Page((box.folder / "timed.html").read_text()).texts["Timeline of the ranks in the denoiser"][-1]
        seconds = sum(part["seconds"] for part in parts if part["phase"] == "denoise")
        assert end.endswith(" " + unit) and says(end, seconds, {"us": 1e-6, "ms": 1e-3, "s": 1}), (end, seconds)
    box.refuse(2, "[--link] does not go with report without a machine", "analyze", "report", "u.json", "--link", "pcie")
    box.refuse(2, "[--output] './u.json' is a trace that the report reads", "analyze", "report", "u.json", "-o", "./u.json")
    for name in ("/dev/stdout", "-"):
        outcome = box.run("analyze", "report", "u.json", "-o", name)
        assert outcome.out.endswith("</html>\n") and Page(outcome.out).plots == 3, outcome


def test_analyze_refuses_traces(box):
    assert box.run("trace", "a cat", "--model", MODEL, *SMALL, *DEGREES, "-o", "t.json").code == 0
    text = (box.folder / "t.json").read_text()
    (box.folder / "cut.json").write_text(text[:len(text) // 2])
    (box.folder / "none.json").write_text("{}")
    (box.folder / "old.json").write_text(text.replace('"tessera_trace":1', '"tessera_trace":99'))
    for name, change, why in (
            ("idle", lambda trace: trace["ranks"][0].update(events=[]), "'events' must be a list of at least one event"),
            ("twice", lambda trace: trace["ranks"].append(trace["ranks"][0]), "rank 0 is there twice"),
            ("long", lambda trace: trace.update(traced_steps=99), "'traced_steps' must be at most the number of steps"),
            ("late", lambda trace: trace["ranks"][1]["events"][0].update(step=7), "an event is of step 7, but 1 are traced"),
            ("low", lambda trace: trace["ranks"][0]["events"][0].update(peak=0, live=5), "'peak' must be a number from 5"),
            ("uneven", lambda trace: next(event for event in trace["ranks"][0]["events"] if "collective" in event).update(bytes=1),
             "'bytes' must be the sum of those in 'sends'"),
            ("unposted", lambda trace: next(event for event in trace["ranks"][0]["events"] if "wait" in event).update(wait=777),
             "waits for collective 777, which was not posted before"),
            ("triple", lambda trace: next(event for event in trace["ranks"][0]["events"] if event.get("sends"))["sends"][0].append(1),
             "'sends' must be pairs of a rank below 2 and bytes"),
            ("far", lambda trace: next(event for event in trace["ranks"][0]["events"] if "collective" in event).update(ranks=[0, 77]),
             "'ranks' must be ranks below 2")):
        trace = json.loads(text)
        change(trace)
        (box.folder / f"{name}.json").write_text(json.dumps(trace))
        box.refuse(3, why, "analyze", "report", f"{name}.json", "--machine", "h100", "-o", "r.html")
    box.refuse(3, ": it ends too early, as if it were cut off", "analyze", "ops", "cut.json")
    box.refuse(3, "none.json] is no trace", "analyze", "ops", "none.json")
    box.generate("a cat", *SMALL, "--timeline", "timeline.json")
    box.refuse(3, "[timeline.json] is a timeline, which shows no operations; `tessera trace` makes a trace, and so does `tessera "
               "generate` with --record", "analyze", "ops", "timeline.json")
    box.refuse(3, "version 99", "analyze", "comm", "old.json")
    box.refuse(3, "missing.json", "analyze", "memory", "missing.json")
    box.refuse(2, "[--rank] is 7, but t.json holds ranks 0, 1", "analyze", "ops", "t.json", "--rank", "7")
    box.refuse(2, "ops needs the file of a trace", "analyze", "ops")
    box.refuse(2, "ops takes one trace, got 2", "analyze", "ops", "t.json", "t.json")
    box.refuse(2, "[--dies] does not go with ops", "analyze", "ops", "t.json", "--dies", "2")
    box.refuse(2, "[--output]", "analyze", "report", "t.json", "-o", "no/such/folder/r.html")
    box.refuse(3, "no-such-machine", "analyze", "report", "t.json", "--machine", "no-such-machine")
