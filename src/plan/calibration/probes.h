// The operations that a calibration times: those that networks consist of, called as networks call them, at
// sizes that span those of typical models.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "plan/efficiency.h"

namespace tessera::plan {

struct Probe {
  std::string name;  // for display: "gemm 1024 x 1152 x 4608"
  WorkKind kind = WorkKind::kGemm;
  at::ScalarType dtype = at::kFloat;
  // Creates its tensors on the device. The result performs the operation once, each time with weights that
  // are not in the processor's caches, as in a step of a network whose weights do not fit into them.
  std::function<std::function<void()>(at::Device)> prepare;
};

// `cache_bytes` is the total size of the processor's caches. The first probe of each kind has a typical size,
// and later ones alternate between kinds, so that any number of them from the start is useful.
std::vector<Probe> make_probes(at::ScalarType dtype, int64_t cache_bytes);

// Loads a layer from a file in bf16, like a text encoder whose blocks are read at use: it converts the
// weights, in memory that the process already has.
struct LoadingProbe {
  std::function<void()> run;
  int64_t bytes = 0;  // of the layer
};
LoadingProbe loading_probe(at::ScalarType dtype);

// The work of the probe's only operation as a trace (plan/recorder.h) would record it. Nothing is computed.
Work work_of(const Probe& probe);

}  // namespace tessera::plan
