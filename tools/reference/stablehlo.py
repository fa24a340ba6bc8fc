"""Runs a program that `tessera trace --stablehlo` wrote with XLA or IREE, on the weights of a checkpoint.

It knows nothing of Tessera: the description beside the program says which tensor of which file is which argument.
"""
import json
import pathlib
import re

import ml_dtypes
import numpy as np
from safetensors import safe_open

DTYPES = {"f32": np.float32, "f64": np.float64, "bf16": ml_dtypes.bfloat16, "f16": np.float16, "i64": np.int64, "i32": np.int32,
          "i1": np.bool_}


def read_weights(folder):
    """The tensors of a component's folder, by key, as torch tensors."""
    tensors = {}
    for path in sorted(pathlib.Path(folder).glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for key in file.keys():
                tensors[key] = file.get_tensor(key)
    return tensors


def to_numpy(tensor, dtype):
    """A torch tensor as an array, of bf16 too."""
    import torch

    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).contiguous().numpy().view(ml_dtypes.bfloat16).astype(dtype)
    return tensor.contiguous().numpy().astype(dtype)


COLLECTIVE = re.compile(r" = (.*?) (all-reduce|all-gather|all-to-all|reduce-scatter|collective-permute)\(.*?\)(.*)")
ARRAY = re.compile(r"\b(pred|[a-z]+\d+)\[([\d,]*)\]")


def bytes_of(text):
    """Of all arrays of a type of HLO: "f32[2,4]{1,0}", or several in brackets."""
    total = 0
    for dtype, dims in ARRAY.findall(text):
        bits = 8 if dtype == "pred" else int(re.sub(r"\D", "", dtype))
        total += bits // 8 * int(np.prod([int(size) for size in dims.split(",") if size], dtype=int))
    return total


def group_size(attributes):
    """How many devices a collective is among: its groups are a list, "[2,2]<=[4]" (groups, members), or axes of a mesh."""
    if found := re.search(r"replica_groups=\{\{([\d,]*)\}", attributes):
        return len(found[1].split(","))
    if found := re.search(r"replica_groups=\[\d+,(\d+)\]<=", attributes):
        return int(found[1])
    found = re.search(r"replica_groups=mesh\[(.*?)\].*?\{(.*?)\}", attributes)
    sizes = dict(re.findall(r"'(\w+)'=(\d+)", found[1]))
    return int(np.prod([int(sizes[axis]) for axis in re.findall(r"'(\w+)'", found[2])]))


def collectives_of(hlo):
    """What a device sends in a compiled program, by kind: [calls, bytes], where a sum is a ring's, scattered and gathered."""
    found = {}
    for line in hlo.splitlines():
        match = COLLECTIVE.search(line)
        if not match:
            continue
        result, kind, attributes = match.groups()
        size = bytes_of(result)
        if kind != "collective-permute":
            count = group_size(attributes)
            share = (count - 1) / count
            size = size * {"all-reduce": 2 * share, "reduce-scatter": count * share}.get(kind, share)
        calls = found.setdefault(kind, [0, 0])
        calls[0] += 1
        calls[1] += round(size)
    return found


class Program:
    def __init__(self, path):
        self.text = pathlib.Path(path).read_text()
        self.description = json.loads(pathlib.Path(path).with_suffix(".json").read_text())
        self.compiled = None

    def inputs(self):
        return [each for each in self.description["arguments"] if each["kind"] == "input"]

    def arguments(self, model, inputs):
        """`inputs` are arrays by name; weights come from the folder of the model."""
        parts, arrays = {}, []
        for each in self.description["arguments"]:
            dtype = DTYPES[each["dtype"]]
            if each["kind"] in ("input", "cache"):
                array = np.asarray(inputs[each["name"]], dtype)
            elif each["kind"] == "constant":
                array = np.full(each["shape"], each["value"], dtype)
            else:
                part = each["part"]
                parts.setdefault(part, read_weights(pathlib.Path(model) / part))
                tensor = parts[part][each["key"]]
                array = to_numpy(tensor[tuple(slice(*ends) for ends in each["slice"])], dtype)
            if list(array.shape) != each["shape"]:
                raise SystemExit(f"{each['name']} has shape {list(array.shape)}, and the program takes {each['shape']}")
            behind = [(0, all - own) for all, own in zip(each.get("padded_shape", each["shape"]), each["shape"], strict=True)]
            arrays.append(np.pad(array, behind))
        return arrays

    def run(self, model, inputs, engine="xla"):
        """Returns the results by name. `engine` is "xla" or "iree"."""
        arrays = self.arguments(model, inputs)
        results = self.run_iree(arrays) if engine == "iree" else self.run_xla(arrays)
        return {each["name"]: result for each, result in zip(self.description["results"], results, strict=True)}

    @staticmethod
    def run_together(programs, model, inputs):
        """Runs the programs of all ranks, which are one, on as many devices of XLA (before JAX is imported, XLA_FLAGS must ask for
        them). `inputs` are by rank; returns the results by rank and name."""
        import jax
        from jax._src import xla_bridge
        from jax._src.interpreters import mlir
        from jax._src.lib import xla_client
        from jax.sharding import Mesh, NamedSharding, PartitionSpec
        from jaxlib.mlir import ir

        count = len(programs)
        if any(each.text != programs[0].text for each in programs):
            raise ValueError("the programs of these ranks are not one")
        backend = xla_bridge.get_backend("cpu")
        devices = backend.local_devices()[:count]
        compiled = programs[0].compiled
        if compiled is None:
            options = xla_client.CompileOptions()
            options.num_partitions = count
            build = options.executable_build_options
            build.num_partitions = count
            build.use_spmd_partitioning = True
            build.device_assignment = xla_client.DeviceAssignment.create(np.arange(count).reshape(1, count))
            with mlir.make_ir_context():
                module = ir.Module.parse(programs[0].text)
                module.operation.verify()
                compiled = backend.compile_and_load(module, xla_client.DeviceList(tuple(devices)), options)
            programs[0].compiled = compiled
        sharding = NamedSharding(Mesh(np.array(devices), ("rank",)), PartitionSpec("rank"))
        arguments = []
        with jax.enable_x64(True):
            for parts in zip(*(each.arguments(model, inputs[rank]) for rank, each in enumerate(programs)), strict=True):
                placed = [jax.device_put(part, device) for part, device in zip(parts, devices, strict=True)]
                whole = (count * parts[0].shape[0], *parts[0].shape[1:])
                arguments.append(jax.make_array_from_single_device_arrays(whole, sharding, placed))
        results = compiled.execute_sharded(arguments).disassemble_into_single_device_arrays()
        return [{each["name"]: np.asarray(parts[rank])[tuple(map(slice, each["shape"]))]
                 for each, parts in zip(program.description["results"], results, strict=True) if each.get("kind") != "padding"}
                for rank, program in enumerate(programs)]

    def compile_sharded(self):
        """The program for as many devices of XLA as its mesh has (before JAX is imported, XLA_FLAGS must ask for them), with what
        the partitioner puts in, and the devices as a jax.sharding.Mesh."""
        from jax._src import xla_bridge
        from jax._src.interpreters import mlir
        from jax._src.lib import xla_client
        from jax.sharding import Mesh
        from jaxlib.mlir import ir

        mesh = self.description["mesh"]
        count = int(np.prod(list(mesh.values()), dtype=int))
        backend = xla_bridge.get_backend("cpu")
        devices = backend.local_devices()[:count]
        options = xla_client.CompileOptions()
        options.num_partitions = count
        build = options.executable_build_options
        build.num_partitions = count
        build.use_spmd_partitioning = True
        build.use_shardy_partitioner = True
        build.device_assignment = xla_client.DeviceAssignment.create(np.arange(count).reshape(1, count))
        with mlir.make_ir_context():
            module = ir.Module.parse(self.text)
            module.operation.verify()
            compiled = backend.compile_and_load(module, xla_client.DeviceList(tuple(devices)), options)
        return compiled, Mesh(np.array(devices).reshape(tuple(mesh.values())), tuple(mesh))

    def run_sharded(self, model, inputs):
        """Runs a program with shardings on all devices of its mesh. Returns the results by name, and what the devices send each
        other: {kind: [calls, bytes]}, of each device."""
        import jax
        from jax.sharding import NamedSharding, PartitionSpec

        compiled, mesh = self.compile_sharded()

        def sharding(described):
            return NamedSharding(mesh, PartitionSpec(*(tuple(axes) or None for axes in described["sharding"])))

        with jax.enable_x64(True):
            placed = [jax.device_put(array, sharding(each))
                      for array, each in zip(self.arguments(model, inputs), self.description["arguments"], strict=True)]
        parts = compiled.execute_sharded(placed).disassemble_into_single_device_arrays()
        results = {}
        for each, of_devices in zip(self.description["results"], parts, strict=True):
            result = np.empty(each["shape"], DTYPES[each["dtype"]])
            places = sharding(each).devices_indices_map(tuple(each["shape"]))
            for part in of_devices:
                result[places[next(iter(part.devices()))]] = np.asarray(part)
            results[each["name"]] = result
        return results, collectives_of(compiled.hlo_modules()[0].to_string())

    def run_iree(self, arrays):
        import iree.compiler
        import iree.runtime

        if self.compiled is None:
            binary = iree.compiler.compile_str(self.text, input_type="stablehlo", target_backends=["llvm-cpu"],
                                               extra_args=["--iree-llvmcpu-target-cpu=host", "--iree-input-demote-f64-to-f32=false"])
            config = iree.runtime.Config("local-task")
            self.compiled = iree.runtime.load_vm_module(iree.runtime.VmModule.copy_buffer(config.vm_instance, binary), config)
        results = self.compiled.main(*arrays)
        return [np.asarray(each) for each in (results if isinstance(results, (list, tuple)) else [results])]

    def run_xla(self, arrays):
        import jax
        from jax._src import xla_bridge
        from jax._src.interpreters import mlir
        from jax._src.lib import xla_client
        from jaxlib.mlir import ir

        backend = xla_bridge.get_backend("cpu")
        device = backend.local_devices()[0]
        if self.compiled is None:
            with mlir.make_ir_context():
                module = ir.Module.parse(self.text)
                module.operation.verify()
                self.compiled = backend.compile_and_load(module, xla_client.DeviceList((device,)), xla_client.CompileOptions())
        with jax.enable_x64(True):
            placed = [jax.device_put(array, device) for array in arrays]
        return [np.asarray(each[0]) for each in self.compiled.execute_sharded(placed).disassemble_into_single_device_arrays()]
