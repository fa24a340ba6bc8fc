"""Tests `tessera trace --stablehlo`; tools/parity/stablehlo.py runs the programs."""
import json
import math
import shutil

from harness import MODEL, ROOT, SMALL


def test_a_program_and_its_description(box):
    outcome = box.run("trace", "a cat", "--model", MODEL, *SMALL, "--dtype", "fp32", "--stablehlo", "p.mlir")
    assert outcome.code == 0 and outcome.out == "p.mlir\n", outcome
    text = (box.folder / "p.mlir").read_text()
    description = json.loads((box.folder / "p.json").read_text())
    assert text.startswith("module @tessera {\n  func.func public @main(%arg0: tensor<"), text[:80]
    assert text.count("%arg") >= len(description["arguments"]) == text.splitlines()[1].count("%arg"), description
    assert (description["part"], description["rank"], description["world_size"]) == ("denoiser", 0, 1), description
    names = [each["name"] for each in description["arguments"] if each["kind"] == "input"]
    assert names == ["prompt.0", "prompt.1", "timestep", "latents"], names
    assert [each["name"] for each in description["results"]] == ["prediction"], description["results"]
    weights = [each for each in description["arguments"] if each["kind"] == "weight"]
    assert {each["part"] for each in weights} == {"transformer"}, weights
    assert all([end - begin for begin, end in each["slice"]] == each["shape"] for each in weights), weights
    size = 4 * sum(math.prod(each["shape"]) for each in weights) / 1024
    count = len(description["arguments"])
    assert outcome.err == (f"p.mlir: PixArtSigmaPipeline, denoiser, fp32, 1 rank: {count} arguments, {size:.1f} KiB of weights, "
                           f"{len(text) / 1024:.1f} KiB of text\n"), outcome
    outcome = box.run("trace", "a cat", "--model", MODEL, *SMALL, "--dtype", "fp32", "--stablehlo", "p.mlir", "-q")
    assert outcome.code == 0 and outcome.err == "", outcome


def test_a_file_that_is_no_description_is_kept(box):
    words = ["trace", "a cat", "--model", MODEL, *SMALL, "--use-cfg-parallel", "--stablehlo", "p.mlir"]
    kept = box.folder / "p.1.json"
    for content in ("", "not JSON", "[1]", '{"part": "denoiser"}'):
        kept.write_text(content)
        box.refuse(2, "[--stablehlo] writes the description of the program to 'p.1.json', which holds something else; move that file, or "
                      "name another FILE.mlir", *words)
        assert kept.read_text() == content
    kept.unlink()
    for _ in range(2):  # its own are replaced
        outcome = box.run(*words)
        assert outcome.code == 0 and json.loads(kept.read_text())["rank"] == 1, outcome
        told = [line.split(": ")[1].split(", ", 3)[-1] for line in outcome.err.splitlines()]
        assert told == ["rank 0 of 2, 1 partition", "rank 1 of 2, 1 partition"], outcome


def test_programs_of_ranks_that_work_alone(box):
    words = ["trace", "a cat", "--model", MODEL, *SMALL, "--dtype", "fp32", "--use-cfg-parallel", "--stablehlo"]
    outcome = box.run(*words, "p.mlir")
    assert outcome.code == 0 and outcome.out == "p.0.mlir\np.1.mlir\n", outcome
    samples = [json.loads((box.folder / f"p.{rank}.json").read_text())["prompt_of_sample"] for rank in (0, 1)]
    assert samples[0] != samples[1] and all(len(each) == 1 for each in samples), samples
    outcome = box.run("trace", "a cat", "--model", MODEL, *SMALL, "--num-images-per-prompt", "3", "--data-parallel-degree", "2",
                      "--rank", "1", "--stablehlo", "d.mlir")
    assert outcome.code == 0 and outcome.out == "d.1.mlir\n", outcome
    assert json.loads((box.folder / "d.1.json").read_text())["images"] == [2, 3]


def test_ranks_that_work_together_have_one_program(box):
    words = ["trace", "a cat", "--model", MODEL, "--height", "64", "--width", "64", "--no-resolution-binning", "--dtype", "fp32"]
    for flag, collective in (("--ulysses-degree", "all_to_all"), ("--ring-degree", "collective_permute"), ("--kv-gather-degree", "all_gather"),
                             ("--tensor-parallel-degree", "all_reduce")):
        outcome = box.run(*words, flag, "2", "--stablehlo", "p.mlir")
        assert outcome.code == 0, outcome
        texts = [(box.folder / f"p.{rank}.mlir").read_text() for rank in (0, 1)]
        assert texts[0] == texts[1] and f'"stablehlo.{collective}"' in texts[0], flag
        assert "replica_groups = dense<[[0, 1]]>" in texts[0] or "source_target_pairs = dense<[[0, 1], [1, 0]]>" in texts[0], flag
    # Of a bias that one rank adds, the others have zeros.
    arguments = [json.loads((box.folder / f"p.{rank}.json").read_text())["arguments"] for rank in (0, 1)]
    kinds = {(one["kind"], other["kind"]) for one, other in zip(*arguments, strict=True)}
    assert kinds == {("weight", "weight"), ("weight", "constant"), ("input", "input")}, kinds


def test_ranks_with_other_parts_have_branches(box):
    words = ["trace", "a cat", "--model", MODEL, "--height", "80", "--width", "64", "--no-resolution-binning", "--dtype", "fp32"]
    outcome = box.run(*words, "--ring-degree", "2", "--stablehlo", "p.mlir")
    assert outcome.code == 0, outcome
    texts = [(box.folder / f"p.{rank}.mlir").read_text() for rank in (0, 1)]
    assert texts[0] == texts[1] and '"stablehlo.case"' in texts[0] and '"stablehlo.collective_permute"' in texts[0]
    # Five rows of tokens: three and two, of two rows of latents each.
    for rank, rows, more in ((0, [0, 6], {}), (1, [6, 10], {"padded_shape": [2, 4, 6, 8]})):
        description = json.loads((box.folder / f"p.{rank}.json").read_text())
        latents = next(each for each in description["arguments"] if each["name"] == "latents")
        part = {"slice": [[0, 2], [0, 4], rows, [0, 8]], "dtype": "f32", "shape": [2, 4, rows[1] - rows[0], 8], **more}
        assert latents == {"name": "latents", "kind": "input", **part}, latents
        assert description["results"] == [{"name": "prediction", **part}] and description["partitions"] == [0, 1], description


def test_stages_take_caches_that_the_first_step_gives(box):
    words = ["trace", "a cat", "--model", MODEL, "--height", "64", "--width", "64", "--no-resolution-binning", "--dtype", "fp32",
             "--pipefusion-parallel-degree", "2", "--stablehlo"]
    names = {}
    for part in ("first_step", "denoiser"):
        outcome = box.run(*words, f"{part}.mlir", "--part", part)
        assert outcome.code == 0, outcome
        for rank in (0, 1):
            description = json.loads((box.folder / f"{part}.{rank}.json").read_text())
            assert description["partitions"] == [rank], description
            given = [each["name"] for each in description["arguments"] if each["kind"] in ("input", "cache")]
            names[part, rank] = ([name for name in given if not name.startswith(("prompt", "timestep"))],
                                 [each["name"] for each in description["results"]])
            kinds = {each["name"]: each["kind"] for each in description["arguments"]}
            assert all((kind == "cache") == name.startswith("cache") for name, kind in kinds.items()), kinds
    # The stage's block has one cache of keys and values. Patches come one after another behind the first step.
    patches = ["0", "1"]
    assert names["first_step", 0] == ([f"latents.{i}" for i in patches], ["hidden.0", "cache.0"]), names
    assert names["first_step", 1] == (["hidden.0"], [*(f"prediction.{i}" for i in patches), "cache.0"]), names
    assert names["denoiser", 0] == (["cache.0", *(f"latents.{i}" for i in patches)],
                                    [*(f"hidden.{i}.0" for i in patches), "cache.0"]), names
    assert names["denoiser", 1] == (["cache.0", *(f"hidden.{i}.0" for i in patches)],
                                    [*(f"prediction.{i}" for i in patches), "cache.0"]), names


def test_displaced_patches_take_what_an_earlier_step_left(box):
    words = ["trace", "a cat", "--model", ROOT / "tests" / "golden" / "tiny-sd", "--height", "96", "--width", "64", "--dtype", "fp32",
             "--displaced-patch-degree", "2", "--stablehlo"]
    caches = {}
    for part in ("first_step", "denoiser"):
        outcome = box.run(*words, f"{part}.mlir", "--part", part)
        assert outcome.code == 0, outcome
        for rank in (0, 1):
            description = json.loads((box.folder / f"{part}.{rank}.json").read_text())
            assert description["partitions"] == [0, 1], description
            caches[part, rank] = [{each["name"]: each["shape"] for each in description[of] if each.get("kind", "cache") == "cache"
                                   and each["name"].startswith("cache")} for of in ("arguments", "results")]
    for rank in (0, 1):
        assert not caches["first_step", rank][0] and caches["denoiser", rank][0], caches
        assert caches["first_step", rank][1] == caches["denoiser", rank][0] == caches["denoiser", rank][1], caches


def test_parts_of_a_program(box):
    for part, inputs, results in (("text_encoder", ["tokens"], ["states"]), ("decoder", ["latents"], ["frames"])):
        outcome = box.run("trace", "a cat", "--model", MODEL, *SMALL, "--part", part, "--stablehlo", "p.mlir")
        assert outcome.code == 0, outcome
        description = json.loads((box.folder / "p.json").read_text())
        found = [each["name"] for each in description["arguments"] if each["kind"] == "input"]
        assert found == inputs and [each["name"] for each in description["results"]] == results, description


def test_one_program_with_the_shardings_of_all_ranks(box):
    words = ["trace", "a cat", "--model", MODEL, "--height", "64", "--width", "64", "--no-resolution-binning", "--dtype", "fp32",
             "--sharding", "sdy", "--stablehlo", "p.mlir"]
    outcome = box.run(*words, "--use-cfg-parallel", "--ulysses-degree", "2", "--tensor-parallel-degree", "2")
    assert outcome.code == 2, outcome  # the model has two heads
    outcome = box.run(*words, "--use-cfg-parallel", "--ring-degree", "2", "--tensor-parallel-degree", "2")
    assert outcome.code == 0 and outcome.out == "p.mlir\n", outcome
    text = (box.folder / "p.mlir").read_text()
    description = json.loads((box.folder / "p.json").read_text())
    assert text.splitlines()[1] == '  sdy.mesh @mesh = <["cfg"=2, "ring"=2, "tp"=2]>', text.splitlines()[1]
    assert description["mesh"] == {"cfg": 2, "ring": 2, "tp": 2} and description["world_size"] == 8, description
    assert description["partitions"] == list(range(8)), description
    assert outcome.err.startswith("p.mlir: PixArtSigmaPipeline, denoiser, fp32, 8 devices: "), outcome
    arguments = {each["name"]: each for each in description["arguments"]}
    assert arguments["latents"]["sharding"] == [["cfg"], [], ["ring"], []], arguments["latents"]
    weight = arguments["transformer/transformer_blocks.0.attn1.to_q.weight"]
    assert weight["sharding"] == [["tp"], []] and weight["slice"] == [[0, 16], [0, 16]], weight
    assert '"stablehlo.all_reduce"' not in text and "sdy.sharding_constraint" in text, text[:200]


def test_a_program_for_each_stage(box):
    words = ["trace", "a cat", "--model", MODEL, *SMALL, "--ring-degree", "2", "--sharding", "sdy", "--stablehlo", "p.mlir"]
    outcome = box.run(*words, "--stages", "0-0,1-1", "--mesh", "1x2")
    assert outcome.code == 0 and outcome.out == "p.0.mlir\np.1.mlir\n", outcome
    first, last = (json.loads((box.folder / f"p.{stage}.json").read_text()) for stage in (0, 1))
    assert (first["blocks"], last["blocks"]) == ([0, 0], [1, 1]) and first["mesh"] == {"x": 1, "y": 2}, first
    given = [each["name"] for each in last["arguments"] if each["kind"] == "input"]
    assert given == ["prompt.0", "prompt.1", "timestep", "hidden.0"], given
    hidden = first["results"][0]
    assert hidden["name"] == "hidden.0" and hidden["sharding"] == [[], ["x", "y"], []], hidden
    assert [each["name"] for each in last["results"]] == ["prediction"], last["results"]


def test_refused_shardings(box):
    words = ["trace", "a cat", "--model", MODEL, *SMALL]
    shard = [*words, "--sharding", "sdy", "--stablehlo", "p.mlir"]
    box.refuse(2, "[--mesh] must be two sizes such as 2x4, got '2'", *shard, "--mesh", "2")
    box.refuse(2, "[--mesh] 2x4 does not fit 2 ranks (ring 2); give two sizes whose product is 2", *shard, "--mesh", "2x4",
               "--ring-degree", "2")
    box.refuse(2, "[--mesh] 2x4 does not fit 1 rank; give the degree of a method too, as --tensor-parallel-degree", *shard, "--mesh", "2x4")
    box.refuse(2, "[--mesh] 4x1 does not fit 4 ranks (cfg 2, ring 2); give 2x2", *shard, "--mesh", "4x1", "--ring-degree", "2",
               "--use-cfg-parallel")
    box.refuse(2, "[--mesh] needs --sharding sdy", *words, "--mesh", "2x4")
    alone = "[--sequence-parallel] divides what is between the layers of tensor parallelism by one axis; give --tensor-parallel-degree"
    box.refuse(2, alone, *shard, "--sequence-parallel", "--ring-degree", "2")
    video = ROOT / "tests" / "golden" / "tiny-open-sora"
    box.refuse(2, alone, "trace", "a cat", "--model", video, "--tensor-parallel-degree", "4", "--split-scheme", "2d", "--sharding", "sdy",
               "--stablehlo", "p.mlir", "--sequence-parallel")
    box.refuse(2, "[--sequence-parallel] needs --sharding sdy", *words, "--sequence-parallel")
    box.refuse(2, "[--sharding] divides into equal parts only, and a rank has [2, 13, 16] of transformer_blocks.0.attn1.to_out.0 [2, 25, 16], "
               "which is no equal part of 2; choose other sizes or degrees, or leave it out for a program of each rank",
               "trace", "a cat", "--model", MODEL, "--height", "80", "--width", "80", "--no-resolution-binning", "--sharding", "sdy",
               "--stablehlo", "p.mlir", "--tensor-parallel-degree", "2", "--sequence-parallel")
    for stages, why in (("0-0", "end at block 0, but the last block of the model is 1"),
                        ("1-1", "'1-1' begins at block 1 where block 0 is next"),
                        ("0-0,0-1", "'0-1' begins at block 0 where block 1 is next"),
                        ("", "must be first and last blocks such as 0-13,14-27, got ''"),
                        ("0-0,", "must be first and last blocks such as 0-13,14-27, got '0-0,'"),
                        ("1-0", "must be first and last blocks such as 0-13,14-27, got '1-0'")):
        box.refuse(2, "[--stages] " + why, *shard, "--stages", stages)
    box.refuse(2, "[--stages] divides the blocks of the denoiser, and --part names 'text_encoder'", *shard, "--stages", "0-1", "--part", "text_encoder")
    box.refuse(2, "[--stages] divides a model between its blocks, which the skip connections of a U-Net join; leave it out", "trace",
               "a cat", "--model", ROOT / "tests" / "golden" / "tiny-sd", "--height", "64", "--width", "64", "--sharding", "sdy",
               "--stablehlo", "p.mlir", "--stages", "0-0")
    box.refuse(2, "[--sharding] must be sdy, got 'mhlo'", *words, "--sharding", "mhlo", "--stablehlo", "p.mlir")
    box.refuse(2, "[--sharding] needs --stablehlo", *words, "--sharding", "sdy")
    box.refuse(2, "[--rank] does not go with --sharding, which writes one program for all ranks", *words, "--sharding", "sdy", "--rank", "0",
               "--stablehlo", "p.mlir")
    box.refuse(2, "[--sharding] cannot express PipeFusion and displaced patches", *words, "--sharding", "sdy",
               "--pipefusion-parallel-degree", "2", "--stablehlo", "p.mlir")
    odd = ["trace", "a cat", "--model", MODEL, "--height", "80", "--width", "64", "--no-resolution-binning"]
    box.refuse(2, "[--sharding] divides into equal parts only, and a rank has [2, 4, 6, 8] of latents [2, 4, 10, 8], which is no equal part of 2",
               *odd, "--ring-degree", "2", "--sharding", "sdy", "--stablehlo", "p.mlir")
    heads = ["trace", "a cat", "--model", video, "--height", "96", "--width", "64", "--num-frames", "17"]
    box.refuse(2, "a rank has [10, 24, 20] of attention [10, 24, 40], which is no equal part of 3", *heads, "--ulysses-degree", "3",
               "--no-dynamic-sequence-parallel", "--sharding", "sdy", "--stablehlo", "p.mlir")
    large = ["trace", "a cat", "--model", MODEL, "--height", "2304", "--width", "2304", "--no-resolution-binning"]
    box.refuse(2, "one rank denoises the pictures one after the other", *large, "--num-images-per-prompt", "2",
               "--data-parallel-degree", "2", "--sharding", "sdy", "--stablehlo", "p.mlir")
    assert not list(box.folder.glob("p*")), list(box.folder.iterdir())


def test_refused_programs(box):
    words = ["trace", "a cat", "--model", MODEL, *SMALL]
    box.refuse(2, "[--stablehlo] must name a file that ends in .mlir, got 'p.txt'", *words, "--stablehlo", "p.txt")
    box.refuse(2, "[--part] the model has no 'unet'; its parts are denoiser, decoder, text_encoder", *words, "--part", "unet",
               "--stablehlo", "p.mlir")
    box.refuse(2, "[--part] needs --stablehlo", *words, "--part", "decoder")
    box.refuse(2, "[--part] 'first_step' needs ranks that use what an earlier step left; give --pipefusion-parallel-degree or "
               "--displaced-patch-degree", *words, "--part", "first_step", "--stablehlo", "p.mlir")
    (box.folder / "q.1.json").mkdir()
    box.refuse(2, "[--stablehlo] [q.1.json] is a folder", *words, "--use-cfg-parallel", "--stablehlo", "q.mlir")
    box.refuse(2, "[--vae-tiling] decodes tile by tile", *words, "--vae-tiling", "--part", "decoder", "--stablehlo", "p.mlir")
    box.refuse(2, "[--json] does not go with --stablehlo", *words, "--json", "--stablehlo", "p.mlir")
    box.refuse(2, "[--output] does not go with --stablehlo", *words, "-o", "t.json", "--stablehlo", "p.mlir")
    model = box.folder / "cut"
    shutil.copytree(ROOT / MODEL, model)
    weights = next((model / "transformer").glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:1000])
    box.refuse(3, "get the file again", "trace", "a cat", "--model", model, *SMALL, "--stablehlo", "p.mlir")
    assert not list(box.folder.glob("p*")), list(box.folder.iterdir())


IMAGE = ["--height", "64", "--width", "96", "--no-resolution-binning"]
VIDEO = ["--height", "64", "--width", "96", "--num-frames", "17"]
TENSOR = ["--tensor-parallel-degree", "2"]
# The model, its sizes, the ranks that work together, the dtype, and which ranks are compared: of those with branches both.
READ_BACK = [("tiny-pixart", IMAGE, [], "fp32", [0]), ("tiny-pixart", IMAGE, ["--ulysses-degree", "2", "--ring-degree", "2"], "fp32", [0]),
             ("tiny-pixart", IMAGE, TENSOR, "fp32", [0]), ("tiny-open-sora", VIDEO, [], "fp32", [0]),
             ("tiny-open-sora", VIDEO, ["--ulysses-degree", "2"], "fp32", [0]),
             ("tiny-open-sora", VIDEO, ["--ring-degree", "2"], "fp32", [0]),
             ("tiny-sdxl", ["--height", "64", "--width", "48"], [], "fp32", [0]),
             ("tiny-pixart", ["--height", "80", "--width", "64", "--no-resolution-binning"], ["--ring-degree", "2"], "fp32", [0, 1]),
             ("tiny-sd", ["--height", "96", "--width", "64"], ["--ulysses-degree", "2"], "fp32", [0, 1]),
             ("tiny-pixart", IMAGE, TENSOR, "bf16", [0, 1]), ("tiny-open-sora", VIDEO, TENSOR, "fp32", [0, 1])]
MOST = ("messages", "sent", "received", "bruck")  # of a collective


def products(row):
    """Whether a row is one of the engine's products: a program has those of its lines too, as additions of biases."""
    return row["operation"].startswith(("linear", "attention")) or "conv2d" in row["operation"]


def rows_of(box, view, path, rank, keep=lambda row: True):
    outcome = box.run("analyze", view, path, "--rank", str(rank), "--json")
    assert outcome.code == 0 and outcome.err == "", outcome
    rows = json.loads(outcome.out)["rows"]
    return [row for row in rows if row.get("phase", "denoise") == "denoise" and keep(row)]


def between_ranks(row):
    """Whether ranks that share a picture send each other this in an evaluation. The latents are gathered after the last one. A program
    also finds the number of its partition, for which a trace sends nothing."""
    return row["collective"] != "gather" and row["axis"] in ("ulysses", "ring", "sp", "tp")


def largest(of_ranks):
    """The rows of collectives of one rank, whose messages are padded to the largest part."""
    return [row | {key: max(each[i][key] or 0 for each in of_ranks) for key in MOST} for i, row in enumerate(of_ranks[0])]


def test_a_program_that_is_read_back_has_the_rows_of_its_trace(box):
    """Of a run of one step: the products, what ranks that share a picture send each other in an evaluation, FLOPs, and sizes."""
    for model, sizes, ranks, dtype, compared in READ_BACK:
        words = ["trace", "a red circle left of a star", "--model", ROOT / "tests" / "golden" / model, *sizes, *ranks, "--dtype", dtype]
        assert box.run(*words, "--num-inference-steps", "1", "-o", "t.json").code == 0
        outcome = box.run(*words, "--stablehlo", "p.mlir")
        assert outcome.code == 0, outcome
        programs = outcome.out.split()
        sent = largest([rows_of(box, "comm", "t.json", rank, between_ranks) for rank in compared])
        assert bool(sent) == bool(ranks), (model, ranks)

        for rank in compared:
            def check(view, expected, keys, keep=lambda row: True):
                found = rows_of(box, view, programs[rank], rank, keep)
                both = [sorted(str([row[key] or 0 for key in keys]) for row in rows) for rows in (expected, found)]
                assert both[0] == both[1], (model, ranks, rank, view, set(both[0]) ^ set(both[1]))

            def of_trace(view, keep=lambda row: True):
                return rows_of(box, view, "t.json", rank, keep)

            made = of_trace("ops", products)
            assert made, model
            check("ops", made, ("operation", "role", "inputs", "output", "count", "flops", "bytes"), products)
            check("comm", sent, ("axis", "collective", "ranks", "count", *MOST), between_ranks)
            counted = of_trace("flops", lambda row: row["products"] > 0)
            assert counted, model
            check("flops", counted, ("part", "products", "convolutions"), lambda row: row["products"] > 0)
            named = of_trace("sizes")
            assert bool(named) == (model == "tiny-open-sora"), model
            check("sizes", named, ("name", "value"))


def test_views_of_programs(box):
    golden = ROOT / "tests" / "golden" / "stablehlo" / "transformer.mlir"
    outcome = box.run("analyze", "ops", golden)
    assert outcome.code == 0 and outcome.out.startswith("Rank 0 of 1: GFLOP and bytes of operations of the program, which runs once\n"), outcome
    assert box.run("analyze", "comm", golden).out == f"Rank 0 of {golden} sends nothing\n"
    assert json.loads(box.run("analyze", "flops", golden, "--json").out)["model"] == "jit_transformer"
    small = ROOT / "fuzz" / "corpus" / "stablehlo" / "ranks.mlir"
    through_stdin = box.run("analyze", "flops", "-", stdin=small.read_bytes())
    assert through_stdin.code == 0 and through_stdin.out == box.run("analyze", "flops", small).out, through_stdin
    why = "is a program, of which there are ops, sizes, comm, flops; this needs a trace"
    box.refuse(3, f"[{golden}] {why}", "analyze", "memory", golden)
    box.refuse(3, f"[{golden}] {why}", "analyze", "report", golden, "-o", "r.html")
    box.refuse(3, f"[{golden}] {why}", "analyze", "hardware", golden, "--machine", "h100")
    box.refuse(2, f"[--rank] is 1, but the program in {golden} is for 1 partition", "analyze", "ops", golden, "--rank", "1")
    text = golden.read_text()
    (box.folder / "cut.mlir").write_text(text[:text.index("cond {")])
    box.refuse(3, "[cut.mlir: line 5] the text ends before 'cond'", "analyze", "ops", "cut.mlir")
    for content, why in (("", "is empty; tessera trace makes a trace, or a program with --stablehlo"),
                         (" \n", "is empty"), ("some words\n", "is neither a trace, which is JSON, nor the text of a program in StableHLO"),
                         (b"ML\xefR\x01", "is bytecode of MLIR; give the program as text")):
        (box.folder / "none.mlir").write_bytes(content if isinstance(content, bytes) else content.encode())
        for view in (["ops"], ["memory"], ["hardware", "--machine", "h100"]):
            box.refuse(3, f"[none.mlir] {why}", "analyze", *view, "none.mlir")
    assert box.run("trace", "a cat", "--model", MODEL, *SMALL, "--stablehlo", "p.mlir").code == 0
    box.refuse(3, "[p.json] is the description of a program, and no trace; the program is 'p.mlir'", "analyze", "ops", "p.json")
    box.refuse(3, "[standard input] is the description of a program, and no trace; the program is in the .mlir beside it", "analyze", "flops",
               "-", stdin=b'{"part": "decoder", "partitions": [0], "arguments": [], "results": []}')
    (box.folder / "unknown.mlir").write_text((box.folder / "p.mlir").read_text().replace(" stablehlo.add ", " stablehlo.addition ", 1))
    line = (box.folder / "unknown.mlir").read_text().split("stablehlo.addition")[0].count("\n") + 1
    box.refuse(3, f"[unknown.mlir: line {line}] 'stablehlo.addition' is no operation of StableHLO", "analyze", "flops", "unknown.mlir")
    (box.folder / "other.mlir").write_text("module {\n  llvm.func @f()\n}\n")
    box.refuse(3, "[other.mlir: line 2] 'llvm.func' is no function of a program", "analyze", "ops", "other.mlir")
