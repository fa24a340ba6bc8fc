#include "cli/run.h"

int main(int argc, char** argv) {
  return tessera::cli::run({argv + 1, argv + argc});
}
