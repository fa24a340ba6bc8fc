// The roof of a core: the most multiplications and additions that it can do in a second.
#pragma once

namespace tessera {

// `tessera_bench roof fp32|bf16` prints FLOP/s of one core, measured with operands that stay in registers and
// the widest instructions that this process may use; 0 on processors other than x86.
int run_roof(int argc, char** argv);  // the arguments after `roof`

}  // namespace tessera
