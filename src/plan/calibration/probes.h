// What a calibration times: the operations of which networks consist, as these call them, at sizes that span
// those of typical models.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "plan/efficiency.h"

namespace tessera::plan {

struct Probe {
  std::string name;  // for people: "gemm 1024 x 1152 x 4608"
  WorkKind kind = WorkKind::kGemm;
  at::ScalarType dtype = at::kFloat;
  // Makes its tensors on the device. The result does the operation once, each time with weights that the
  // processor's caches do not hold, as in a step of a network whose weights they cannot hold.
  std::function<std::function<void()>(at::Device)> prepare;
};

// `cache_bytes` is what all caches of the processor hold together. The first probe of each kind is one of
// typical size, and those after it alternate between kinds, so that any number from the begin is of use.
std::vector<Probe> make_probes(at::ScalarType dtype, int64_t cache_bytes);

// Makes a layer of a file in bf16, as a text encoder does whose blocks are read at use: it converts the
// weights, with memory that the process has.
struct LoadingProbe {
  std::function<void()> run;
  int64_t bytes = 0;  // of the layer
};
LoadingProbe loading_probe(at::ScalarType dtype);

// What a trace (plan/recorder.h) says of the probe: the work of its only operation. Nothing is computed.
Work work_of(const Probe& probe);

}  // namespace tessera::plan
