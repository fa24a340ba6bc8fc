#include "media/source.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "core/error.h"
#include "core/file.h"
#include "core/system_call.h"

namespace tessera::media {

Source open_source(const std::filesystem::path& path) {
  const std::string name = path.string();
  if (name.find("://") != std::string::npos && type_at(path) == std::filesystem::file_type::not_found)
    input_error(name, "URLs are not fetched; download the file, and name that");
  require_regular_file(path);
  const int number = uninterrupted([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC); });
  if (number < 0) input_error(name, "cannot read: {}", system_reason(errno));
  const auto close = [](const int* descriptor) {
    ::close(*descriptor);
    delete descriptor;
  };
  const std::shared_ptr<int> descriptor(new int(number), close);
  const auto read = [descriptor](int64_t offset, std::span<std::byte> to) {
    return static_cast<int64_t>(
        uninterrupted([&] { return ::pread(*descriptor, to.data(), to.size(), offset); }));
  };
  const off_t size = ::lseek(number, 0, SEEK_END);
  return {.size = std::max<int64_t>(size, 0), .read = read};
}

Source memory_source(std::span<const std::byte> bytes) {
  const auto read = [bytes](int64_t offset, std::span<std::byte> to) {
    const auto from = bytes.subspan(std::min(static_cast<size_t>(offset), bytes.size()));
    const size_t count = std::min(from.size(), to.size());
    std::memcpy(to.data(), from.data(), count);
    return static_cast<int64_t>(count);
  };
  return {.size = static_cast<int64_t>(bytes.size()), .read = read};
}

std::string read_bytes(const Source& source, int64_t offset, int64_t count) {
  std::string bytes(static_cast<size_t>(std::clamp<int64_t>(source.size - offset, 0, count)), '\0');
  size_t done = 0;
  while (done < bytes.size()) {
    const int64_t got = source.read(offset + static_cast<int64_t>(done),
                                    std::as_writable_bytes(std::span(bytes).subspan(done)));
    if (got <= 0) break;
    done += static_cast<size_t>(got);
  }
  bytes.resize(done);
  return bytes;
}

}  // namespace tessera::media
