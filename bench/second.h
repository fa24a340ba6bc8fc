// `tessera_bench second FOLDER [SIDE]` measures how long an engine that has generated an image takes from the
// next request of the same size to its first step, and how much of that the text encoder takes.
#pragma once

namespace tessera {

int run_second(int argc, char** argv);  // the arguments after `second`

}  // namespace tessera
