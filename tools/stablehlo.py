#!/usr/bin/env python3
"""Runs a program that `tessera trace --stablehlo` wrote with XLA or IREE, on the weights of a checkpoint.

It knows nothing of Tessera: the description beside the program says which tensor of which file is which argument.
"""
import json
import pathlib

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
            if each["kind"] == "input":
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
            arrays.append(array)
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
        sharding = NamedSharding(Mesh(np.array(devices), ("rank",)), PartitionSpec("rank"))
        arguments = []
        with jax.enable_x64(True):
            for parts in zip(*(each.arguments(model, inputs[rank]) for rank, each in enumerate(programs)), strict=True):
                placed = [jax.device_put(part, device) for part, device in zip(parts, devices, strict=True)]
                whole = (count * parts[0].shape[0], *parts[0].shape[1:])
                arguments.append(jax.make_array_from_single_device_arrays(whole, sharding, placed))
        results = compiled.execute_sharded(arguments).disassemble_into_single_device_arrays()
        names = [each["name"] for each in programs[0].description["results"]]
        return [{name: np.asarray(parts[rank]) for name, parts in zip(names, results, strict=True)} for rank in range(count)]

    def run_iree(self, arrays):
        import iree.compiler
        import iree.runtime

        if self.compiled is None:
            binary = iree.compiler.compile_str(self.text, input_type="stablehlo", target_backends=["llvm-cpu"],
                                               extra_args=["--iree-llvmcpu-target-cpu=host"])
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
