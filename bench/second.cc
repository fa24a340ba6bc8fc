#include "bench/second.h"

#include <ATen/Parallel.h>

#include <chrono>
#include <iostream>

#include "engine/engine.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

double milliseconds(Clock::duration time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

}  // namespace

int run_second(int argc, char** argv) {
  if (argc < 1 || argc > 2) {
    std::cerr << "usage: tessera_bench second FOLDER [SIDE]\n";
    return 2;
  }
  at::set_num_threads(1);
  engine::Engine engine(engine::read_model(argv[0]), uint64_t{1} << 40);
  engine::Request request;
  request.num_inference_steps = 2;
  if (argc == 2) request.height = request.width = std::stoll(argv[1]);
  for (int64_t picture = 0; picture < 6; ++picture) {
    request.prompts = {fmt::format("a red circle above {} blue squares", picture)};
    Clock::time_point first_step{};
    engine::Observer observer;
    observer.computed = [&](int64_t step, int64_t, int64_t, Clock::time_point begin, Clock::time_point) {
      if (step == 0) first_step = begin;
    };
    const auto asked = Clock::now();
    const engine::Result result = engine.run(engine::resolve(request, engine.model()), {}, observer);
    std::cout << fmt::format(
        "image {}: {:.1f} ms until the first step, of which encode {:.1f} ms, load {:.1f} ms\n", picture,
        milliseconds(first_step - asked), 1000 * result.seconds.encode, 1000 * result.seconds.load);
  }
  return 0;
}

}  // namespace tessera
