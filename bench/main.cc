// The benchmarks of kernels (google-benchmark). `tessera_bench worker ...` is the process that
// bench/compare.py alternates with diffusers; `tessera_bench second` times a request to an engine that stays
// loaded, `tessera_bench video ...` is one of the ranks that bench/video.py starts, and `tessera_bench roof
// ...` measures what a core can do at most.
#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>
#include <c10/core/InferenceMode.h>

#include <string_view>

#include "bench/roof.h"
#include "bench/second.h"
#include "bench/video.h"
#include "bench/worker.h"
#include "core/host.h"
#include "core/tensor_heap.h"

int main(int argc, char** argv) {
  tessera::cap_libraries();
  tessera::keep_freed_memory();
  if (argc > 1 && std::string_view(argv[1]) == "worker") return tessera::run_worker(argc - 2, argv + 2);
  if (argc > 1 && std::string_view(argv[1]) == "second") return tessera::run_second(argc - 2, argv + 2);
  if (argc > 1 && std::string_view(argv[1]) == "video") return tessera::run_video(argc - 2, argv + 2);
  if (argc > 1 && std::string_view(argv[1]) == "roof") return tessera::run_roof(argc - 2, argv + 2);
  const c10::InferenceMode inference_mode;
  at::set_num_threads(1);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
