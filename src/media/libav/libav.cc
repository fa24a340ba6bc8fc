#include "media/libav/libav.h"

extern "C" {
#include <libavutil/log.h>
#include <libavutil/mem.h>
}

#include <algorithm>
#include <array>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <new>
#include <utility>

#include "core/text.h"

namespace tessera::media {
namespace {

constexpr int kBufferBytes = 1 << 15;

#if LIBAVFORMAT_VERSION_MAJOR >= 61
using WrittenBytes = const uint8_t*;
#else
using WrittenBytes = uint8_t*;
#endif

thread_local std::array<char, 256> last_error = {};

void keep_error(void*, int level, const char* format, va_list arguments) {
  constexpr int kLevel = 0xFF;  // the rest selects a colour
  if ((level & kLevel) <= AV_LOG_ERROR)
    std::vsnprintf(last_error.data(), last_error.size(), format, arguments);
}

// Returns where a seek goes in a file of `size` bytes, or -1 if that is outside the file. A seek can also ask
// for the size.
int64_t sought(int64_t offset, int whence, int64_t position, int64_t size) {
  switch (whence & ~AVSEEK_FORCE) {
    case AVSEEK_SIZE:
      return size;
    case SEEK_SET:
      break;
    case SEEK_CUR:
      offset += position;
      break;
    case SEEK_END:
      offset += size;
      break;
    default:
      return -1;
  }
  return std::max<int64_t>(offset, -1);
}

Io make_io(void* opaque, bool writes, decltype(AVIOContext::read_packet) read,
           decltype(AVIOContext::write_packet) write, decltype(AVIOContext::seek) seek) {
  auto* const buffer = static_cast<unsigned char*>(av_malloc(kBufferBytes));
  if (!buffer) throw std::bad_alloc();
  Io io(avio_alloc_context(buffer, kBufferBytes, writes ? 1 : 0, opaque, read, write, seek));
  if (io) return io;
  av_free(buffer);
  throw std::bad_alloc();
}

// A MemoryFile opened a second time, for reading only.
struct ReadAgain {
  const std::string& bytes;
  int64_t position = 0;
};

int read_again(void* opaque, uint8_t* to, int size) {
  auto& from = *static_cast<ReadAgain*>(opaque);
  const int64_t count = std::min<int64_t>(size, static_cast<int64_t>(from.bytes.size()) - from.position);
  if (count <= 0) return AVERROR_EOF;
  std::memcpy(to, from.bytes.data() + from.position, static_cast<size_t>(count));
  from.position += count;
  return static_cast<int>(count);
}

int64_t seek_again(void* opaque, int64_t offset, int whence) {
  auto& from = *static_cast<ReadAgain*>(opaque);
  const auto size = static_cast<int64_t>(from.bytes.size());
  const int64_t to = sought(offset, whence, from.position, size);
  if (to >= 0 && (whence & AVSEEK_SIZE) == 0) from.position = to;
  return to >= 0 ? to : AVERROR(EINVAL);
}

int close_again(AVFormatContext*, AVIOContext* io) {
  if (!io) return 0;
  delete static_cast<ReadAgain*>(io->opaque);
  free_io(io);
  return 0;
}

}  // namespace

void free_io(AVIOContext* io) {
  if (!io) return;
  av_freep(&io->buffer);  // libav may have made another one
  avio_context_free(&io);
}

Options parse_options(const char* text) {
  AVDictionary* options = nullptr;
  const int code = av_dict_parse_string(&options, text, "=", ":", 0);
  Options result(options);
  if (code < 0) throw std::bad_alloc();  // the texts are ours and well formed
  return result;
}

void silence_libav() {
  av_log_set_callback(keep_error);
}

void begin_libav() {
  last_error[0] = '\0';
}

std::string libav_reason(int code) {
  std::string reason = printable(last_error.data());
  std::array<char, AV_ERROR_MAX_STRING_SIZE> meaning = {};
  if (reason.empty()) {
    av_strerror(code, meaning.data(), meaning.size());
    reason = meaning.data();
  }
  const size_t end = reason.find_last_not_of(" .");
  return reason.substr(0, end == std::string::npos ? 0 : end + 1);
}

MemoryFile::MemoryFile(bool is_seekable) {
  const auto write = [](void* opaque, WrittenBytes from, int size) {
    auto& file = *static_cast<MemoryFile*>(opaque);
    const auto begin = static_cast<size_t>(file.position_), count = static_cast<size_t>(size);
    try {
      file.bytes_.resize(std::max(file.bytes_.size(), begin + count));
    } catch (const std::exception&) {  // exceptions must not pass through libav
      return AVERROR(ENOMEM);
    }
    std::memcpy(file.bytes_.data() + begin, from, count);
    file.position_ += size;
    return size;
  };
  const auto seek = [](void* opaque, int64_t offset, int whence) -> int64_t {
    auto& file = *static_cast<MemoryFile*>(opaque);
    const int64_t to = sought(offset, whence, file.position_, static_cast<int64_t>(file.bytes_.size()));
    if (to >= 0 && (whence & AVSEEK_SIZE) == 0) file.position_ = to;
    return to >= 0 ? to : AVERROR(EINVAL);
  };
  io_ = make_io(this, true, nullptr, write, is_seekable ? +seek : nullptr);
}

void MemoryFile::attach(AVFormatContext& muxer) {
  muxer.pb = io_.get();
  muxer.opaque = this;
  muxer.io_open = open_again;
  muxer.io_close2 = close_again;
}

// An MP4's index is moved to its front when all is written, for which libav opens the file again.
int MemoryFile::open_again(AVFormatContext* muxer, AVIOContext** io, const char*, int flags, AVDictionary**) {
  if (flags != AVIO_FLAG_READ) return AVERROR(EACCES);
  try {
    auto again = std::make_unique<ReadAgain>(ReadAgain{static_cast<MemoryFile*>(muxer->opaque)->bytes_});
    *io = make_io(again.get(), false, read_again, nullptr, seek_again).release();
    static_cast<void>(again.release());  // close_again() owns it
    return 0;
  } catch (const std::exception&) {  // exceptions must not pass through libav
    return AVERROR(ENOMEM);
  }
}

std::string MemoryFile::take() {
  avio_flush(io_.get());
  position_ = 0;
  return std::exchange(bytes_, {});
}

SourceReader::SourceReader(const Source& source) : source_(source) {
  const auto read = [](void* opaque, uint8_t* to, int size) {
    auto& reader = *static_cast<SourceReader*>(opaque);
    const int64_t left = reader.source_.size - reader.position_;
    if (left <= 0) return AVERROR_EOF;
    const auto most = static_cast<size_t>(std::min<int64_t>(size, left));
    const int64_t count = reader.source_.read(reader.position_, {reinterpret_cast<std::byte*>(to), most});
    if (count <= 0) return count < 0 ? AVERROR(EIO) : AVERROR_EOF;
    reader.position_ += count;
    return static_cast<int>(count);
  };
  const auto seek = [](void* opaque, int64_t offset, int whence) -> int64_t {
    auto& reader = *static_cast<SourceReader*>(opaque);
    const int64_t to = sought(offset, whence, reader.position_, reader.source_.size);
    if (to < 0 || to > reader.source_.size) return AVERROR(EINVAL);  // beyond the end of a damaged file
    if ((whence & AVSEEK_SIZE) == 0) reader.position_ = to;
    return to;
  };
  io_ = make_io(this, false, read, nullptr, seek);
}

}  // namespace tessera::media
