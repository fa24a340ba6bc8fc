#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <csignal>

#include "core/cpu.h"

int main(int argc, char** argv) {
  tessera::cap_libraries();
  // As the program does: a peer may close its socket before all that it should hear is written.
  std::signal(SIGPIPE, SIG_IGN);
  ::testing::InitGoogleTest(&argc, argv);
  // What the program does: no autograd anywhere, and one thread so that results do not depend on the machine.
  const c10::InferenceMode inference_mode;
  at::set_num_threads(1);
  at::manual_seed(0);
  return RUN_ALL_TESTS();
}
