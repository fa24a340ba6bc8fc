// `tessera_bench video`: the work of bench/video.py on one rank.
#pragma once

namespace tessera {

int run_video(int argc, char** argv);

}  // namespace tessera
