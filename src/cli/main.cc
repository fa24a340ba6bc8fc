#include "cli/run.h"

int main(int argc, char** argv) {
  tessera::cli::end_program(tessera::cli::run({argv + 1, argv + argc}));
}
