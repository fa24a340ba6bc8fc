// `tessera_bench worker PART FOLDER DTYPE THREADS HEIGHT WIDTH` loads one part of a checkpoint. Then it does
// one unit of work for each line on stdin and answers with the seconds that it took and the peak memory in
// bytes, so that a driver can alternate it with another program on one machine, step by step.
#pragma once

#include <cstdint>

namespace tessera {

// Peak resident memory of this process in bytes, as counted by the kernel.
int64_t peak_bytes();

int run_worker(int argc, char** argv);  // the arguments after `worker`

}  // namespace tessera
