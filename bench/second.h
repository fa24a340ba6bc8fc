// `tessera_bench second FOLDER [SIDE]`: how long an engine that has painted a picture takes from being asked
// for another one of that size until its first step begins, and what of that is the text encoder's.
#pragma once

namespace tessera {

int run_second(int argc, char** argv);  // the arguments after `second`

}  // namespace tessera
