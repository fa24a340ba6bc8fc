"""Tests `tessera mesh`."""
import json

from harness import MODEL, ROOT, SMALL

SIXTEEN = ["--world", "16", "--data-parallel-degree", "2", "--use-cfg-parallel", "--pipefusion-parallel-degree", "2",
           "--ulysses-degree", "2"]


def test_mesh_of_sixteen_ranks(box):
    # This is the example of xDiT's documentation, whose data-parallel groups are called replicas here.
    outcome = box.run("mesh", *SIXTEEN)
    assert outcome.code == 0 and outcome.err == "", outcome
    assert box.run("mesh").out == "1 rank\n"
    for line in ("16 ranks: dp 2 x cfg 2 x pp 2 x ulysses 2", "[0 1 2 3 4 5 6 7] [8 9 10 11 12 13 14 15]",
                 "[0 8] [1 9] [2 10]", "[0 4] [1 5] [2 6] [3 7] [8 12] [9 13] [10 14] [11 15]",
                 "[0 2] [1 3] [4 6] [5 7] [8 10] [9 11] [12 14] [13 15]", "[0 1] [2 3] [4 5]"):
        assert line in outcome.out, (line, outcome.out)
    mesh = json.loads(box.run("mesh", "--json", *SIXTEEN).out)
    assert mesh["world_size"] == 16 and mesh["sizes"]["cfg"] == 2 and mesh["sizes"]["ring"] == 1, mesh
    groups = mesh["groups"]
    assert groups["replica"] == [list(range(8)), list(range(8, 16))], groups
    assert groups["dp"] == [[rank, rank + 8] for rank in range(8)], groups
    assert groups["cfg"] == [[rank, rank + 4] for rank in (0, 1, 2, 3, 8, 9, 10, 11)], groups
    assert sorted(groups["pp"]) == [[rank, rank + 2] for rank in (0, 1, 4, 5, 8, 9, 12, 13)], groups
    assert groups["sp"] == groups["ulysses"] == [[rank, rank + 1] for rank in range(0, 16, 2)], groups
    assert mesh["ranks"][13] == {"rank": 13, "coordinates": {"dp": 1, "cfg": 1, "pp": 0, "displaced": 0, "ring": 0, "gather": 0, "ulysses": 1,
                                                              "tp2": 0, "tp": 0}}, mesh["ranks"][13]


def test_mesh_of_a_model(box):
    words = ["mesh", "--model", MODEL, "--dtype", "fp32"]
    whole = json.loads(box.run(*words, "--json").out)["ranks"][0]["share"]
    config = json.loads((MODEL / "transformer" / "config.json").read_text())
    rows = config["sample_size"] // config["patch_size"]  # rows of tokens at the default size
    assert whole["blocks"] == [0, 2] and whole["heads"] == [0, 2] and whole["rows"] == rows, whole
    degrees = ["--pipefusion-parallel-degree", "2", "--tensor-parallel-degree", "2", "--ring-degree", "2"]
    shares = [rank["share"] for rank in json.loads(box.run(*words, "--json", *degrees).out)["ranks"]]
    assert [share["blocks"] for share in shares] == [[0, 1]] * 4 + [[1, 2]] * 4, shares
    assert [share["heads"] for share in shares[:4]] == [[0, 1], [1, 2], [0, 1], [1, 2]], shares
    assert shares[0]["rows"] + shares[2]["rows"] == whole["rows"], shares
    assert all(share["weights_bytes"] < whole["weights_bytes"] for share in shares), shares
    # A run reads as many bytes as the mesh predicts.
    box.latents("a cat", *SMALL, "--no-text-encoder-parallel", *degrees, "--report", "run.json")
    report = box.report()
    box.latents("a cat", *SMALL, "--report", "run.json")
    others = box.report()["ranks"][0]["bytes_read"] - whole["weights_bytes"]
    read = [rank["bytes_read"] - others for rank in report["ranks"]]
    assert read == [share["weights_bytes"] for share in shares], (read, shares)
    text = box.run(*words, *degrees).out
    assert "blocks" in text and "heads" in text and "KiB" in text, text


def test_mesh_of_unequal_ranks(box):
    """Rows and blocks are dealt by the sums of the shares; a trace has the same parts."""
    words = ["--model", MODEL, "--dtype", "fp32", "--height", "512", "--width", "512"]
    usp = ["--ring-degree", "2", "--ulysses-degree", "2", "--rank-shares", "1", "1", "1.5", "4.5"]
    mesh = json.loads(box.run("mesh", *words, *usp, "--json").out)
    assert [rank["rank_share"] for rank in mesh["ranks"]] == [1, 1, 1.5, 4.5], mesh
    assert [rank["share"]["rows"] for rank in mesh["ranks"]] == [2, 2, 3, 9], mesh
    text = box.run("mesh", *words, *usp).out
    assert "share" in text and "      4.5 " in text, text
    stages = json.loads(box.run("mesh", *words, "--pipefusion-parallel-degree", "2", "--rank-shares", "1,9", "--json").out)
    assert [rank["share"]["blocks"] for rank in stages["ranks"]] == [[0, 1], [1, 2]], stages
    box.run("trace", "a cat", *words, "--ring-degree", "2", "--rank-shares", "3,1", "-q", "-o", "t.json")
    flops = [sum(row["products"] for row in json.loads(box.run("analyze", "flops", "t.json", "--rank", rank, "--json").out)["rows"])
             for rank in ("0", "1")]
    assert 2.5 < flops[0] / flops[1] < 3.1, flops


def test_mesh_of_a_model_without_weights(box):
    """It needs shapes alone, as a trace does, and those of videos have frames."""
    model = box.copy_model()
    expected = box.run("mesh", "--model", MODEL, "--tensor-parallel-degree", "2", "--json").out
    (model / "transformer" / "diffusion_pytorch_model.safetensors").unlink()
    for given in (model, model / "transformer", model / "transformer" / "config.json"):
        outcome = box.run("mesh", "--model", given, "--tensor-parallel-degree", "2", "--json")
        assert outcome.code == 0 and outcome.out == expected, outcome
    assert expected.startswith('{\n  "world_size": 2,\n'), expected
    video = ROOT / "tests" / "golden" / "tiny-open-sora"
    assert box.run("mesh", "--model", video, "--num-frames", "34", "--ulysses-degree", "2").code == 0
    box.refuse(2, "[--num-frames] PixArt-Sigma does not support it", "mesh", "--model", MODEL, "--num-frames", "34")


def test_mesh_refuses(box):
    box.refuse(2, "needs 2 ranks (--ulysses-degree 2), but there are 7", "mesh", "--world", "7", "--ulysses-degree", "2")
    box.refuse(2, "nearest valid", "mesh", "--world", "6", "--use-cfg-parallel", "--ulysses-degree", "4")
    box.refuse(2, "[--world] expected an integer", "mesh", "--world", "all")
    box.refuse(2, "at most 4096", "mesh", "--ulysses-degree", "4096", "--ring-degree", "2")
    box.refuse(2, "unknown option", "mesh", "--nproc", "2")
    box.refuse(2, "distributes the blocks of a --model", "mesh", "--attn-layer-num-for-pp", "1", "1")
    box.refuse(2, "give that too", "mesh", "--height", "512")
    box.refuse(2, "--rank-shares 3 1 must be 4 positive numbers, one for each rank", "mesh", "--world", "4", "--ulysses-degree", "4",
               "--rank-shares", "3,1")
    box.refuse(2, "a block for each stage", "mesh", "--model", MODEL, "--pipefusion-parallel-degree", "3")
    box.refuse(3, "no such folder", "mesh", "--model", "nowhere")
    assert "1 rank\n" in box.run("mesh").out
