#include "cli/request_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "comm/descriptor.h"
#include "core/error.h"
#include "core/file.h"
#include "core/utf8.h"

namespace tessera::cli {
namespace {

constexpr uint64_t kMostBytes = uint64_t{1} << 26;
constexpr const char* kStandardInput = "standard input";

// Reads a pipe, a terminal or a device to its end.
std::string read_stream(int descriptor, const std::string& where) {
  std::string text;
  std::array<char, 1 << 16> part;
  while (const ssize_t count = ::read(descriptor, part.data(), part.size())) {
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) input_error(where, "cannot read: {}", std::strerror(errno));
    text.append(part.data(), static_cast<size_t>(count));
    if (text.size() > kMostBytes) input_error(where, "more than {} bytes", kMostBytes);
  }
  return text;
}

// A shell gives a pipe for <(command).
std::string read_any(const std::string& path) {
  std::error_code code;
  if (path == "-") return read_stream(STDIN_FILENO, kStandardInput);
  const std::filesystem::file_type type = std::filesystem::status(path, code).type();
  if (type != std::filesystem::file_type::fifo && type != std::filesystem::file_type::character)
    return read_file(path, kMostBytes);
  const comm::Descriptor stream(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (stream.number() < 0) input_error(path, "cannot read: {}", std::strerror(errno));
  return read_stream(stream.number(), path);
}

Json read_prompts(const std::string& path) {
  const std::string text = read_any(path), where = path == "-" ? kStandardInput : path;
  std::string_view rest = text;
  if (rest.starts_with("\xEF\xBB\xBF")) rest.remove_prefix(3);  // editors on Windows write this mark
  Json prompts = Json::array();
  for (size_t number = 1; !rest.empty(); ++number) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (const auto position = find_invalid_utf8(line)) {
      input_error(where, "line {} is not valid UTF-8 (byte {}); save the file in that encoding", number,
                  *position);
    }
    if (line.find_first_not_of(" \t") != std::string_view::npos) prompts.push_back(line);
  }
  if (prompts.empty()) input_error(where, "holds no prompt; write one per line");
  return prompts;
}

}  // namespace

GenerateArguments with_files(const GenerateArguments& arguments) {
  const RunOptions& run = arguments.run;
  if (!run.prompt_file) return arguments;
  Json given = arguments.given;
  if (given.contains("prompt"))
    usage_error(field("prompt_file"), "there are prompts on the command line too; give either");
  given["prompt"] = read_prompts(*run.prompt_file);
  given.erase("prompt_file");
  return make_arguments(std::move(given));
}

}  // namespace tessera::cli
