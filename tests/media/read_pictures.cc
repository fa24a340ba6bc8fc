// read_pictures FILE... writes the pixels of each picture, as a run takes them, to FILE.ppm. For a file that
// is refused it writes the reason to FILE.refused. tools/parity/images.py uses it.
#include <fstream>
#include <iostream>

#include "core/error.h"
#include "media/video_reader.h"

namespace {

void read(const std::string& path) {
  try {
    const tessera::Image image = tessera::media::read_video(path, 1).frames.at(0);
    std::ofstream file(path + ".ppm", std::ios::binary);
    file << "P6 " << image.width << ' ' << image.height << " 255\n";
    file.write(reinterpret_cast<const char*>(image.pixels.data()), std::ssize(image.pixels));
  } catch (const tessera::Error& error) {
    std::ofstream(path + ".refused") << error.what() << '\n';
  }
}

}  // namespace

int main(int argc, char** argv) try {
  for (int i = 1; i < argc; ++i) read(argv[i]);
  return 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
