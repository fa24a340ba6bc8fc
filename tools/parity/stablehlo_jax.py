"""Has `tessera analyze` read what JAX wrote: a transformer, and the names of all operations of the dialect."""
import json
import pathlib
import subprocess
import tempfile

JAX = "read from jax"
# Those that are read with their attributes or regions, as other programs have them, or refused.
IN_OTHERS = {"all_gather", "all_reduce", "all_to_all", "case", "collective_broadcast", "collective_permute", "constant", "convolution",
             "cross-replica-sum", "dot", "dot_general", "if", "infeed", "outfeed", "recv", "reduce_scatter", "return", "send", "while"}


def read_operations(program, folder):
    """The names of JAX's dialect, and those that a program of all of them is shown to have."""
    from jaxlib.mlir.dialects import _stablehlo_ops_gen

    names = {each.OPERATION_NAME for each in vars(_stablehlo_ops_gen).values() if hasattr(each, "OPERATION_NAME")}
    names -= {f"stablehlo.{name}" for name in IN_OTHERS}
    path = folder / "operations.mlir"
    lines = [f'    %{i} = "{name}"(%x, %x) : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>' for i, name in enumerate(sorted(names))]
    path.write_text("\n".join(["func.func @main(%x: tensor<2x3xf32>) {", *lines, "    return", "}", ""]))
    told = subprocess.run([program, "analyze", "ops", path, "--json"], check=True, stdout=subprocess.PIPE).stdout
    return names, {f"stablehlo.{row['operation']}" for row in json.loads(told)["rows"]}


def check_jax(program):
    """A transformer that JAX lowers is read, and counts what a closed form says, with and without JAX's locations."""
    from tools.reference import jax_transformer

    found = []
    with tempfile.TemporaryDirectory() as scratch:
        path = pathlib.Path(scratch) / "transformer.mlir"
        for has_locations in (False, True):
            path.write_text(jax_transformer.lowered().as_text(debug_info=has_locations))
            told = subprocess.run([program, "analyze", "flops", path, "--json"], check=True, stdout=subprocess.PIPE).stdout
            found.append({key: value for key, value in json.loads(told)["sum"].items() if key in ("products", "elementwise")})
        names, read = read_operations(program, pathlib.Path(scratch))
    is_equal = all(each == jax_transformer.flops() for each in found) and names == read
    print(f"{JAX:26} {found[0]['products']} FLOP of products, {found[0]['elementwise']} elementwise; {len(read)} of {len(names)} operations"
          f"{'' if is_equal else '  FAILED'}", flush=True)
    return is_equal
