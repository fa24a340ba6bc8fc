// picture PROMPT FILE.png [MODEL]: makes a picture. On several ranks, which torchrun or mpirun starts, they
// make it together: torchrun --no-python --nproc-per-node 2 build/picture "a red circle" out.png
#include <tessera/engine.h>

#include <fstream>
#include <iostream>

int main(int argc, char** argv) try {
  if (argc < 3 || argc > 4) {
    std::cerr << "usage: picture PROMPT FILE.png [MODEL]\n";
    return 2;
  }
  tessera::World world = tessera::World::from_environment();
  tessera::EngineOptions options;
  if (argc == 4) options.model = argv[3];
  options.parallel.ulysses_degree = world.size();
  tessera::Engine engine(options, world);

  tessera::Request request;
  request.prompts = {argv[1]};
  request.seed = 1;
  tessera::Observer observer;
  observer.progressed = [&](tessera::Phase phase, int64_t done, int64_t total) {
    if (world.rank() == 0 && phase == tessera::Phase::kDenoise)
      std::cerr << "step " << done << " of " << total << '\n';
  };
  const tessera::Result result = engine.generate(request, observer);
  if (world.rank() != 0) return 0;
  std::ofstream file(argv[2], std::ios::binary);
  file << tessera::encode_png(result.images.at(0));
  file.close();
  if (file) return 0;
  std::cerr << "picture: cannot write " << argv[2] << '\n';
  return 2;
} catch (const tessera::Error& error) {
  std::cerr << "picture: " << error.what() << '\n';
  return error.exit_code();
}
