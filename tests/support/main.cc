#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <csignal>

#include "core/host.h"

int main(int argc, char** argv) {
  tessera::cap_libraries();
  // The program does the same, because a peer may close its socket before all messages to it are written.
  std::signal(SIGPIPE, SIG_IGN);
  ::testing::InitGoogleTest(&argc, argv);
  // As in the program there is no autograd. One thread keeps results independent of the machine.
  const c10::InferenceMode inference_mode;
  at::set_num_threads(1);
  at::manual_seed(0);
  tessera::make_first_calls();  // tests run ranks as threads
  return RUN_ALL_TESTS();
}
